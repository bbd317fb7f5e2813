"""The folder that an ensemble or a set of pseudo-labels is written to, whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tutti.errors import Fault, StudyError
from tutti.files import sha256_of, storage_faults, whole_folder

CARD = "card.json"
PAGE = "card.md"


@contextmanager
def output_folder(out: Path, *, listing: str = CARD) -> Iterator[Path]:
    """Yields a temporary folder that takes the place of ``out`` when the block ends without error.

    Args:
        listing: the JSON file in it that has under ``files`` what else is there.

    Raises:
        StudyError: where ``out`` holds anything but what an earlier card lists; nothing is ever deleted but that.
        StorageError: where the file system refuses.
    """
    out = out.resolve()
    with storage_faults(out):  # a name too long for the file system is met here first
        others = _others(out, listing)
    if others:
        rule = "be a new or empty folder, or hold nothing but what Tutti wrote there before"
        raise StudyError(Fault(str(out), rule, others[0], "name another folder with --out"))
    with whole_folder(out) as folder:
        yield folder


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in the folder, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}


def _others(out: Path, listing: str) -> list[str]:
    """What stands in ``out`` that no card lists."""
    if not out.exists():
        return []
    if not out.is_dir():
        return ["a file"]
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    try:
        listed = {*json.loads((out / listing).read_text(encoding="utf-8"))["files"], listing, PAGE}
    except (OSError, ValueError, KeyError, TypeError):
        listed = set()
    return sorted(found - listed)
