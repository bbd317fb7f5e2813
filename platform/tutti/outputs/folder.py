"""The folder that an ensemble, a soup, a report or a set of pseudo-labels is written to, as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tutti import mirror
from tutti.errors import Fault, StudyError
from tutti.files import fixed_folder_fault, hashes, resolved, sha256_of, storage_faults, whole_folder, write_whole

if TYPE_CHECKING:
    from tutti.outputs.election.card import Card
    from tutti.outputs.election.soup_card import SoupCard
    from tutti.outputs.pseudo.report import PseudoLabelReport

CARD = "card.json"
PAGE = "card.md"
CardT = TypeVar("CardT", "Card", "PseudoLabelReport", "SoupCard")


@contextmanager
def output_folder(out: Path, *, listing: str = CARD, kind: str | None = None) -> Iterator[Path]:
    """Yields a temporary folder that replaces ``out`` if the block ends without an error.

    Args:
        listing: the JSON file in it whose ``files`` lists all other files.
        kind: the ``kind`` in the listing of what is written, and so of what may be replaced.

    Raises:
        StudyError: if ``out`` cannot be replaced as a whole (see ``fixed_folder_fault``), holds a file that its
            listing lacks or that was changed since, or something of another kind. Only listed files are ever deleted.
        StorageError: if ``out`` cannot be read or written.
    """
    out = resolved(out)
    _check(out, listing, kind)
    with whole_folder(out) as folder:
        yield folder
        _check(out, listing, kind)  # a soup takes long enough for somebody to put a file there
    mirror.push(out)


def write_card(folder: Path, card: CardT) -> CardT:
    """Writes a card as Markdown and JSON beside its files; returns the card with the files' hashes.

    Raises:
        StudyError: if one of the files has the name of the card: a task may be called ``card``.
        StorageError: if a file cannot be read or written.
    """
    card = replace(card, files=hashes(folder))
    if CARD in card.files:
        rule, remedy = f"not be called {CARD}, as the report is", "give the task another name in a new study"
        raise StudyError(Fault("a file of a task", rule, f"the task {Path(CARD).stem!r}", remedy))
    write_whole(folder / PAGE, card.to_markdown())
    write_whole(folder / CARD, card.to_json())
    return card


def _check(out: Path, listing: str, kind: str | None) -> None:
    with storage_faults(out):  # the first access: reports, for example, a name that is too long
        fixed = fixed_folder_fault(out)
        unlisted = _unlisted(out, listing, kind) if fixed is None else []
    if fixed:
        raise StudyError(fixed)
    if unlisted:
        rule = "be a new or empty folder, or hold nothing but what this command wrote there before"
        remedy = "move it away" if kind == "soup" else "name another folder with --out"
        raise StudyError(Fault(str(out), rule, unlisted[0], remedy))


def _unlisted(out: Path, listing: str, kind: str | None) -> list[str]:
    """What must not be replaced in ``out``: files that its listing lacks or hashes otherwise, or another kind."""
    if not out.exists():
        return []
    if not out.is_dir():
        return ["a file"]
    present = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_symlink() or not path.is_dir()}
    try:
        content = json.loads((out / listing).read_text(encoding="utf-8"))
        if (found := content.get("kind", kind)) != kind:  # none in folders of earlier versions
            return [f"the {found} of an earlier run"]
        files = content["files"]
        listed = {*files, listing}
        listed |= {PAGE} if listing == CARD else set()
        known = files if isinstance(files, dict) and kind != "soup" else {}  # weights are too large to hash so often
        changed = [name for name in sorted(present & known.keys()) if sha256_of(out / name) != known[name]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        listed, changed = set(), []
    return sorted(present - listed) + [f"{name}, which was changed since" for name in changed]
