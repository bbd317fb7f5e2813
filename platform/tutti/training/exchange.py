"""Puts another trial's state in the place of a trial's own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tutti.errors import Fault, StorageError
from tutti.files import sha256_of, storage_faults, whole_folder
from tutti.training.resume import MANIFEST, states, whole_manifest

EXCHANGE = "exchange"  # of a manifest: what the state was taken over by


def take_over(donor: Path, own: Path, *, best_score: float, exchange: Mapping[str, Any]) -> None:
    """Copies the newest state of a trial that nobody trains now, with its optimizer, and removes a trial's own states.

    Args:
        donor, own: the trials' folders of states.
        best_score: the trial's own best one: its best checkpoint stays until it has done better itself.
        exchange: kept in the state's manifest, for ``exchange_of``.

    Raises:
        StorageError: where the donor has no whole state, or a file cannot be read or written.
    """
    found = states(donor)
    if not found:
        remedy = "go on with --resume: the trials meet again"
        raise StorageError(Fault(str(donor), "hold a state that another trial can go on from", "none", remedy))
    before = states(own)
    with storage_faults(donor), whole_folder(own / found[0].name) as temporary:
        shutil.copytree(found[0], temporary, dirs_exist_ok=True)
        manifest = json.loads((temporary / MANIFEST).read_text(encoding="utf-8"))
        for name, expected in manifest["files"].items():
            if sha256_of(temporary / name) != expected:
                remedy = "remove it, and go on with --resume"
                raise StorageError(Fault(str(found[0] / name), "be as it was written", "another content", remedy))
        manifest["position"]["best_score"] = best_score
        manifest[EXCHANGE] = dict(exchange)
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for old in before:
        if old.name != found[0].name:
            shutil.rmtree(old, ignore_errors=True)


def exchange_of(own: Path) -> dict[str, Any] | None:
    """What the state that a trial will go on from was taken over by, where it was.

    A kill may have cut ``take_over`` off while it removed the trial's own states, which may be the later ones.
    """
    for state in states(own):
        try:
            found: dict[str, Any] | None = whole_manifest(state).get(EXCHANGE)
        except (StorageError, OSError, ValueError, KeyError, TypeError):  # the trial will pass it over too
            continue
        return found
    return None
