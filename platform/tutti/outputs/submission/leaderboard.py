"""Public leaderboard scores of submissions beside their local ones, and how well the two correlate."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, ValidationError

from tutti.errors import Fault, StorageError, StudyError, misfit, nearest
from tutti.files import sha256_of, storage_faults, write_whole
from tutti.outputs.folder import CARD
from tutti.tasks.metrics import METRICS

_LEAST = 3  # submissions; the correlation of two points is always 1 or -1


@dataclass(frozen=True)
class Entry:
    """One submission.

    Attributes:
        key: a hash of its recipe and the content of its files; if none is submitted, of how its tasks vote.
        submission: its folder.
        made: when the ensemble was written, UTC, ISO 8601.
        added: when the latest public score was added, UTC, ISO 8601.
        public: the competition's score.
        local: nested estimate of the ensemble's score; none if there were too few validation rows.
        tasks: the same by task.
    """

    key: str
    submission: str
    recipe: str
    made: str
    added: str
    public: float
    local: float | None
    tasks: Mapping[str, float | None]

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)


class _File(BaseModel):
    submissions: list[Entry]


@dataclass(frozen=True)
class Correlation:
    """The correlation of public and local scores over the submissions that have both."""

    submissions: int
    pearson: float
    spearman: float


class Leaderboard:
    """A study's submissions with their public scores, in one JSON file that is written atomically.

    Args:
        file: created by the first ``add``.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def entries(self) -> list[Entry]:
        """The submissions, in the order in which they were first added.

        Raises:
            StorageError: if the file cannot be read.
        """
        try:
            return _File.model_validate_json(self._file.read_bytes()).submissions
        except FileNotFoundError:
            return []
        except (OSError, ValidationError) as error:
            remedy = "restore the file from a copy, or move it away and add the submissions again"
            rule = "be as `tutti leaderboard add` wrote it"
            raise StorageError(Fault(str(self._file), rule, misfit(error), remedy)) from error

    def add(self, submission: Path, *, study: str, public: float) -> tuple[int, Entry]:
        """Adds a submission that ``tutti ensemble`` wrote, with its public score, or updates the score of a known one.

        Returns:
            Its position, from 1, and the entry.

        Raises:
            StudyError: if the folder is not an ensemble of this study, its files differ from what its card lists, or
                the score is not finite.
            StorageError: if the file cannot be read or written.
        """
        if not math.isfinite(public):
            raise StudyError(Fault("--score", "be a finite number", str(public), "give what the competition said"))
        entry = _entry(submission, study=study, public=public)
        with storage_faults(self._file.parent), FileLock(self._file.with_suffix(".lock")):
            entries = self.entries()
            keys = [known.key for known in entries]
            index = keys.index(entry.key) if entry.key in keys else len(entries)
            entries[index : index + 1] = [entry]
            content = {"submissions": [asdict(known) for known in entries]}
            write_whole(self._file, json.dumps(content, ensure_ascii=False, indent=2) + "\n")
        return index + 1, entry


def key_of(submission: Path) -> str:
    """The ``Entry.key`` of what the folder holds now, which may have been written anew since it was added.

    Raises:
        StudyError: if it is no folder that ``tutti ensemble`` wrote.
    """
    return _read(submission, public=0.0)[2].key


def correlation(entries: Sequence[Entry]) -> Correlation | None:
    """Pearson's and Spearman's coefficients of public and local scores.

    None for fewer than three submissions, and where all public or all local scores are equal: neither is defined then.
    """
    both = np.array([(entry.local, entry.public) for entry in entries], dtype=np.float64)  # none becomes NaN
    both = both[np.isfinite(both).all(axis=1)] if len(both) else both
    if len(both) < _LEAST or not np.ptp(both, axis=0).all():
        return None
    local, public = both.T
    return Correlation(len(both), *(METRICS[name].score(public, local, outputs=1) for name in ("pearson", "spearman")))


def _entry(submission: Path, *, study: str, public: float) -> Entry:
    own, files, entry = _read(submission, public=public)
    if own != study:
        remedy = f"name it with the study {own}"
        raise StudyError(Fault(str(submission), f"be a submission of the study {study}", own, remedy))
    for name, digest in files.items():
        file = submission / name
        try:
            got = "another content" if file.is_file() else "none"
            same = file.is_file() and sha256_of(file) == digest
        except OSError as error:  # no permission, or a name that is too long
            got, same = error.strerror or str(error), False
        if not same:
            rule, remedy = "be the file that the card lists", "restore it, or run `tutti ensemble` again"
            raise StudyError(Fault(str(file), rule, got, remedy))
    return entry


def _read(submission: Path, *, public: float) -> tuple[str, dict[str, str], Entry]:
    """Reads the card: the study, the files with their SHA-256, and the submission's entry."""
    try:
        card: dict[str, Any] = json.loads((submission / CARD).read_text(encoding="utf-8"))
        if not {"study", "recipe", "created", "tasks", "files", "objective"} <= card.keys():
            raise ValueError("the card of something else")
        files = {_text(name): _text(digest) for name, digest in card["files"].items()}
        # Pictures also show trials that do not vote, so they change when the submission itself does not.
        submitted = sorted(item for item in files.items() if not item[0].endswith(".png"))
        identity = json.dumps([card["recipe"], submitted or _voting(card["tasks"])])
        entry = Entry(
            key=hashlib.sha256(identity.encode()).hexdigest()[:16],
            submission=str(submission.resolve()),
            recipe=_text(card["recipe"]),
            made=_text(card["created"]),
            added=datetime.now(UTC).isoformat(timespec="seconds"),
            public=public,
            local=_score(card["objective"]),
            tasks={_text(task["task"]): _score(task["score"]) for task in card["tasks"]},
        )
        return _text(card["study"]), files, entry
    except (OSError, ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        why = f"no {error} where it belongs" if isinstance(error, KeyError) else str(error)
        got = "no card.json in it" if isinstance(error, OSError) else f"an invalid card.json ({why})"
        rule, remedy = "be a folder that `tutti ensemble` wrote", "name the folder that contains card.json"
        if not submission.exists():
            siblings = [path.name for path in submission.parent.glob("*/")]
            got, remedy = "no such folder", nearest(submission.name, siblings, otherwise=remedy)
        raise StudyError(Fault(str(submission), rule, got, remedy)) from error


def _voting(tasks: Sequence[Mapping[str, Any]]) -> list[object]:
    """What tells ensembles without files apart. Weights are rounded, as another machine adds in another order."""
    return [
        [
            task["task"],
            task["method"],
            sorted((_text(member["key"]), round(member["weight"], 6)) for member in task["members"]),
            {name: round(offset, 6) for name, offset in (task["offsets"] or {}).items()},
        ]
        for task in tasks
    ]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} where a text belongs")
    return value


def _score(estimate: Mapping[str, float] | None) -> float | None:
    return None if estimate is None else float(estimate["score"])
