"""Nested estimates, each computed once for the same recipe and predictions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from tutti.ensembling.nested import Judged
from tutti.ensembling.procedure import Ballot, OutOfFold, Procedure, out_of_fold
from tutti.errors import StorageError
from tutti.files import write_whole

_MOST_BYTES = 2**26  # of one estimate on disk
_MOST_FILES = 100
_PACKAGE = Path(__file__).parents[2]
_ROOMS = ("ensembling", "tasks")  # whose code an estimate comes from


class Estimates:
    """Computes nested estimates, or reads those that were computed before.

    Args:
        folder: where they are kept; none keeps nothing. One that cannot be written is no error.
        say: is told how far a computation is.
    """

    def __init__(self, folder: Path | None = None, *, say: Callable[[str], object] | None = None) -> None:
        self._folder, self._say = folder, say or (lambda _: None)

    def of(
        self, procedure: Procedure, ballot: Ballot, *, what: str, identity: str | None = None
    ) -> tuple[OutOfFold, Judged]:
        """The procedure's predictions for rows that it was not fitted on, and how they are judged.

        Args:
            what: is estimated, in words, for ``say``.
            identity: of what the procedure and the score are made from, beside the arrays; none keeps nothing.
        """
        file = self._file(procedure, ballot, identity)
        if file is not None and (kept := _read(file)) is not None:
            return kept
        found = out_of_fold(
            procedure, ballot, said=lambda number, of: self._say(f"Scoring {what}: fold {number} of {of}")
        )
        judged = ballot.judge(found.scored)
        if file is not None:
            _write(file, found, judged)
        return found, judged

    def _file(self, procedure: Procedure, ballot: Ballot, identity: str | None) -> Path | None:
        arrays = [procedure.standing]
        for each in (ballot, *procedure.others()):
            arrays += [each.votes, each.labels, each.groups, np.array(each.weight)]
            arrays += [] if each.texts_of is None else [each.texts_of]
        if self._folder is None or identity is None or any(array.dtype == object for array in arrays):
            return None
        digest = hashlib.sha256(f"{_code()} {identity}".encode())
        for array in arrays:
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return self._folder / f"{digest.hexdigest()[:32]}.safetensors"


def _read(file: Path) -> tuple[OutOfFold, Judged] | None:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(file)
        numbers = {name: arrays.pop(name).item() for name in ("score", "one_row", "least")}
        judged = Judged(**numbers, resampled=arrays.pop("resampled"))
        found = OutOfFold(
            decisions=arrays["decisions"],
            scored=arrays.get("scored", arrays["decisions"]),
            probabilities=arrays.get("probabilities"),
            calibrated=arrays.get("calibrated"),
            labelled=arrays["labelled"],
            agreement=arrays.get("agreement"),
        )
        return found, judged
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):  # none, or a damaged one: computed again
        return None


def _write(file: Path, found: OutOfFold, judged: Judged) -> None:
    from safetensors.numpy import save

    arrays = {name: array for name, array in vars(found).items() if array is not None}
    if found.scored is found.decisions:
        del arrays["scored"]
    arrays |= {
        "score": np.array(judged.score),
        "resampled": judged.resampled,
        "one_row": np.array(judged.one_row),
        "least": np.array(judged.least),
    }
    if sum(array.nbytes for array in arrays.values()) > _MOST_BYTES:
        return
    with suppress(OSError, StorageError):  # a folder that may only be read
        file.parent.mkdir(exist_ok=True)
        write_whole(file, save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))
        latest_last = sorted(file.parent.glob("*.safetensors"), key=lambda each: each.stat().st_mtime)
        for old in latest_last[:-_MOST_FILES]:
            old.unlink(missing_ok=True)


@cache
def _code() -> str:
    """A hash of the code that makes an estimate: another version's may differ."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for file in sorted((_PACKAGE / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def plain_vote_of(procedure: Procedure, ballot: Ballot, *, members: int) -> Procedure:
    """The mean of so many of the best members, by the standing of a procedure."""
    selection = replace(procedure.selection, top=members, diversity=0.0, within=None)
    return replace(procedure, selection=selection, methods=("uniform",), tune=ballot.score.tuner)
