"""Keeps a study's checkpoints within ``storage.max_gigabytes``: which weights stay, and the removal of all others."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from scipy.spatial.distance import pdist, squareform

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.errors import counted
from tutti.records import Predictions, TrialRecord, TrialState

_logger = logging.getLogger(__name__)
_VALIDATION = "validation"


@dataclass(frozen=True)
class Weights:
    """The checkpoint of a trial that has ended; with folds, those of all its folds.

    Attributes:
        size: bytes on disk.
        score: the trial's objective, or none where it never reported one.
        task_scores: per task, its metric.
    """

    key: str
    size: int
    score: float | None
    task_scores: Mapping[str, float]


def to_keep(weights: Sequence[Weights], apart: np.ndarray, *, limit: float) -> list[str]:
    """Keys of the weights that stay, the first chosen first.

    The best by the objective and the best of each task always stay, even beyond the limit. Then, in turn, the next best
    by the objective, the next best of each task, and the one whose predictions are the farthest from those of its
    nearest among all chosen (Gonzalez 1985, farthest-first traversal), as long as there is one that still fits. With
    one task a third of what stays is thus there for being different, with T tasks one in T + 2.

    Args:
        apart: ``(weights, weights)`` float64: how far the predictions of two disagree; nan where one has none.
        limit: bytes.
    """
    if not weights:
        return []
    rankings = [_ranked([one.score for one in weights])]
    rankings += [
        _ranked([one.task_scores.get(task) for one in weights])
        for task in sorted({task for one in weights for task in one.task_scores})
    ]
    chosen = list(dict.fromkeys(ranking[0] for ranking in rankings))
    room = limit - sum(weights[index].size for index in chosen)
    for ranking in cycle([*rankings, None]):
        waiting = [index for index in rankings[0] if index not in chosen and weights[index].size <= room]
        if not waiting:
            return [weights[index].key for index in chosen]
        found = _farthest(waiting, chosen, apart) if ranking is None else next(i for i in ranking if i in waiting)
        if found is not None:
            chosen.append(found)
            room -= weights[found].size
    raise AssertionError("a cycle has no end")


def _ranked(scores: Sequence[float | None]) -> list[int]:
    """Indices by score, the best first, of equal ones the earlier; those without a score last."""
    return sorted(range(len(scores)), key=lambda index: np.inf if (score := scores[index]) is None else -score)


def _farthest(waiting: Sequence[int], chosen: Sequence[int], apart: np.ndarray) -> int | None:
    """Of those waiting, the one that is the farthest from its nearest chosen one; of equal ones the first."""
    nearest = np.where(np.isnan(apart), np.inf, apart)[np.ix_(waiting, chosen)].min(axis=1)
    nearest[np.isinf(nearest)] = -1  # of no predictions
    return waiting[int(nearest.argmax())] if nearest.max() >= 0 else None


def disagreement(said: Sequence[Mapping[str, Predictions] | None]) -> np.ndarray:
    """``(members, members)`` float64 in [0, 1]: how far two disagree, as the mean over tasks; nan where one is none.

    In a task with classes: the share of rows whose most probable class is another. In a regression: half of one minus
    the correlation (1 where a member says the same value everywhere).

    Args:
        said: of each member, by task, what it predicts for the same rows.
    """
    there = [index for index, one in enumerate(said) if one]
    apart = np.full((len(said), len(said)), np.nan)
    if not there:
        return apart
    members = [one for one in said if one]
    by_task = []
    for task in members[0]:
        values = [one[task].values for one in members]
        if values[0] is None:
            classes = np.stack([np.argmax(one[task].probabilities, axis=1) for one in members])  # type: ignore[arg-type]
            by_task.append(pdist(classes, "hamming"))
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                by_task.append(np.nan_to_num(pdist(np.stack(values), "correlation") / 2, nan=1.0))  # type: ignore[arg-type]
    apart[np.ix_(there, there)] = squareform(np.mean(by_task, axis=0))
    return apart


def prune(folder: StudyFolder, *, trials: Sequence[TrialRecord], max_gigabytes: float) -> list[str]:
    """Removes the weights of ended trials that ``to_keep`` does not name, where all together are beyond the limit.

    The bank keeps their predictions, and says that their weights are gone. Killed at any moment, it leaves each
    checkpoint whole or none, and the next call goes on.

    Returns:
        Keys of the trials whose weights were removed.

    Raises:
        StorageError: where a file cannot be read or removed.
    """
    from tutti.modeling.checkpoint import is_pruned, prune_checkpoint

    bank, ended = Bank(folder.bank), [trial for trial in trials if trial.state is not TrialState.RUNNING]
    for best in (best for trial in ended for best in _checkpoints(folder.trial(trial.key))):
        if is_pruned(best):  # an earlier call was killed in the midst of it
            prune_checkpoint(best)
    weights = [one for trial in ended if (one := _weights(folder, trial))]
    limit = max_gigabytes * 1e9
    removed: list[str] = []
    if sum(one.size for one in weights) > limit:
        kept = to_keep(weights, disagreement(_said(bank, [one.key for one in weights])), limit=limit)
        removed = [one.key for one in weights if one.key not in kept]
    for key in removed:
        for best in _checkpoints(folder.trial(key)):
            prune_checkpoint(best)
    for record in bank.records():  # those too that an earlier call did not come to
        if record.path is not None and _is_pruned(folder.trial(record.key)):
            bank.forget_weights(record.key)
    if removed:
        _logger.info("The weights of %s were pruned: %s", counted(len(removed), "trial"), ", ".join(removed))
    return removed


def bytes_of(trial: Path) -> int:
    """What a trial's checkpoints take on disk, those of all its folds."""
    files = [file for best in _checkpoints(trial) for file in best.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _weights(folder: StudyFolder, trial: TrialRecord) -> Weights | None:
    size = bytes_of(folder.trial(trial.key))
    return Weights(trial.key, size, trial.score, trial.task_scores) if size else None


def _checkpoints(trial: Path) -> list[Path]:
    """A trial's checkpoints, not through a link: what it leads to may be somebody else's."""
    folds = [fold for fold in trial.glob("fold-*") if not fold.is_symlink()]
    found = [place / "best" for place in (trial, *folds) if not trial.is_symlink()]
    return [best for best in found if best.is_dir() and not best.is_symlink()]


def _is_pruned(trial: Path) -> bool:
    from tutti.modeling.checkpoint import is_pruned

    return any(is_pruned(place / "best") for place in (trial, *trial.glob("fold-*")))


def _said(bank: Bank, keys: Sequence[str]) -> list[dict[str, Predictions] | None]:
    """What each checkpoint says about the validation rows, by task; none of one that the bank does not hold."""
    held = {record.key for record in bank.records()}
    return [_validation(bank, key) if key in held else None for key in keys]


def _validation(bank: Bank, key: str) -> dict[str, Predictions]:
    parts = bank.parts(key)
    return {task: bank.predictions(key, task, _VALIDATION) for task in parts if _VALIDATION in parts[task]}
