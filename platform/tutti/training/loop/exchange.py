"""Replaces a trial's training state by another trial's (population-based training)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tutti.errors import Fault, StorageError
from tutti.files import storage_faults, whole_folder
from tutti.training.loop.resume import MANIFEST, REPORT, check_readable, states, whole_manifest

EXCHANGE = "exchange"  # key of a manifest: the exchange that the state was copied in


def take_over(donor: Path, own: Path, *, best_score: float, exchange: Mapping[str, Any]) -> None:
    """Copies the donor's newest state, with its optimizer state, then removes the trial's own states.

    The donor must not be training.

    Args:
        donor, own: the trials' folders of states.
        best_score: the trial's own best score: its best checkpoint stays until the trial beats it.
        exchange: recorded in the state's manifest, for ``exchange_of``.

    Raises:
        StorageError: if the donor has no complete state, or a file cannot be read or written.
    """
    donor_states = states(donor)
    if not donor_states:
        remedy = "go on with --resume: the trials meet again"
        raise StorageError(Fault(str(donor), "hold a state that another trial can go on from", "none", remedy))
    newest, own_states = donor_states[0], states(own)
    with storage_faults(donor), whole_folder(own / newest.name) as temporary:
        shutil.copytree(newest, temporary, dirs_exist_ok=True)
        try:
            manifest = whole_manifest(temporary)
            manifest["position"]["best_score"] = best_score
        except (StorageError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, StorageError):
                check_readable(error)
            got, remedy = "a file that is missing or changed", "remove it, and go on with --resume"
            raise StorageError(Fault(str(newest), "be as it was written", got, remedy)) from error
        manifest.pop(REPORT, None)  # the donor's
        manifest[EXCHANGE] = dict(exchange)
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for state in own_states:
        if state.name != newest.name:
            shutil.rmtree(state, ignore_errors=True)


def exchange_of(own: Path) -> dict[str, Any] | None:
    """The exchange that produced the state which a trial will resume from, or None if it is the trial's own state.

    If ``take_over`` was killed while it removed the trial's own states, one of those may be the newest.

    Raises:
        StorageError: if the file system refuses to read a file, which may pass.
    """
    for state in states(own):
        try:
            exchange: dict[str, Any] | None = whole_manifest(state).get(EXCHANGE)
        except StorageError as error:
            check_readable(error)
            continue
        except (OSError, ValueError, KeyError, TypeError):  # the trial will skip this state too
            continue
        return exchange
    return None
