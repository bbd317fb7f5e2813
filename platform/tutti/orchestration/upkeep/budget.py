"""Prunes a study's checkpoints to ``storage.max_gigabytes``: selects the weights to keep and removes the others."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle
from pathlib import Path

import numpy as np
from scipy.spatial.distance import squareform

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder, TrialFolder
from tutti.errors import counted
from tutti.files import storage_faults
from tutti.records import TrialRecord, TrialState
from tutti.tasks.predictions import Predictions

_logger = logging.getLogger(__name__)
_VALIDATION = "validation"


@dataclass(frozen=True)
class Weights:
    """The checkpoint of an ended trial; with folds, the checkpoints of all its folds.

    Attributes:
        size: bytes on disk.
        score: the trial's score; none if it cannot vote, since it did not finish.
        task_scores: metric of each task; empty if it cannot vote.
    """

    key: str
    size: int
    score: float | None
    task_scores: Mapping[str, float]


def select_to_keep(weights: Sequence[Weights], distances: np.ndarray, *, limit: float) -> list[str]:
    """Keys of the weights to keep, in the order in which they were chosen.

    The best by score and the best of each task are always kept, even beyond the limit. Then, in turn, the next best by
    score, the next best of each task, and the one with the largest distance to its nearest chosen one (Gonzalez 1985,
    farthest-first traversal) are added, as long as one fits. So a third of the kept weights are chosen for diversity
    with one task, and one in T + 2 with T tasks.

    Args:
        distances: ``(weights, weights)`` float64, ``pairwise_distances`` of their predictions.
        limit: bytes.
    """
    if not weights:
        return []
    rankings = [_ranked([each.score for each in weights])]
    rankings += [
        _ranked([each.task_scores.get(task) for each in weights])
        for task in sorted({task for each in weights for task in each.task_scores})
    ]
    chosen = list(dict.fromkeys(ranking[0] for ranking in rankings))
    room = limit - sum(weights[index].size for index in chosen)
    for ranking in cycle([*rankings, None]):
        candidates = [index for index in rankings[0] if index not in chosen and weights[index].size <= room]
        if not candidates:
            return [weights[index].key for index in chosen]
        if ranking is None:
            index = _farthest(candidates, chosen, distances)
        else:
            index = next(index for index in ranking if index in candidates)
        if index is not None:
            chosen.append(index)
            room -= weights[index].size
    raise AssertionError("a cycle has no end")


def _ranked(scores: Sequence[float | None]) -> list[int]:
    """Indices by descending score; ties in order, those without a score last."""
    return sorted(range(len(scores)), key=lambda index: np.inf if (score := scores[index]) is None else -score)


def _farthest(candidates: Sequence[int], chosen: Sequence[int], distances: np.ndarray) -> int | None:
    """The candidate with the largest distance to its nearest chosen one, the first of ties. None if none has
    predictions."""
    nearest = np.where(np.isnan(distances), np.inf, distances)[np.ix_(candidates, chosen)].min(axis=1)
    nearest[np.isinf(nearest)] = -1  # no predictions
    return candidates[int(nearest.argmax())] if nearest.max() >= 0 else None


def pairwise_distances(predictions: Sequence[Mapping[str, Predictions] | None]) -> np.ndarray:
    """How much predictions differ, ``(members, members)`` float64 in [0, 1], the mean over tasks; nan without them.

    In a task it is the difference of decisions as their kind has it, at most 1.

    Args:
        predictions: for each member, predictions of the same rows by task; none if it has none.
    """
    known = [index for index, by_task in enumerate(predictions) if by_task]
    distances = np.full((len(predictions), len(predictions)), np.nan)
    if not known:
        return distances
    members = [by_task for by_task in predictions if by_task]
    task_distances = []
    for task in members[0]:
        own = [by_task[task] for by_task in members]
        kind = own[0].kind
        decisions = [kind.decide(each.outputs) for each in own]
        task_distances.append([min(kind.difference(*pair), 1.0) for pair in combinations(decisions, 2)])
    distances[np.ix_(known, known)] = squareform(np.mean(task_distances, axis=0))
    return distances


def prune(
    folder: StudyFolder, *, trials: Sequence[TrialRecord], max_gigabytes: float, settled: set[str] | None = None
) -> list[str]:
    """Removes the weights of ended trials that ``select_to_keep`` does not choose, if all together exceed the limit.

    The bank keeps their predictions and records that their weights are gone. A kill at any moment leaves each
    checkpoint whole or marked as pruned; the next call completes the removal.

    Args:
        settled: keys of ended trials without weights, which are passed over. Further ones are added, so that the cost
            of a call hardly grows with the number of trials.

    Returns:
        Keys of the trials whose weights were removed.

    Raises:
        StorageError: if a file cannot be read or removed.
    """
    with storage_faults(folder.path):
        return _prune(folder, trials, limit=max_gigabytes * 1e9, settled=set() if settled is None else settled)


def _prune(folder: StudyFolder, trials: Sequence[TrialRecord], *, limit: float, settled: set[str]) -> list[str]:
    from tutti.modeling.checkpoint import prune_checkpoint

    bank = Bank(folder.bank)
    ended = [trial for trial in trials if trial.state is not TrialState.RUNNING and trial.key not in settled]
    for own in (folder.trial(trial.key) for trial in ended):
        if has_pruned(own):  # an earlier call was killed before it removed all files, also those of further folds
            for best in _checkpoints(own):
                prune_checkpoint(best)
    weights = [each for trial in ended if (each := _weights(folder, trial))]
    records = bank.records(trial.key for trial in ended)
    removed: list[str] = []
    if sum(each.size for each in weights) > limit:
        banked = {record.key for record in records}
        predictions = [_predictions(bank, each.key) if each.key in banked else None for each in weights]
        keep = select_to_keep(weights, pairwise_distances(predictions), limit=limit)
        removed = [each.key for each in weights if each.key not in keep]
    for key in removed:
        for best in _checkpoints(folder.trial(key)):
            prune_checkpoint(best)
    for record in records:  # including weights that an earlier call removed but did not record
        if record.path is not None and has_pruned(folder.trial(record.key)):
            bank.forget_weights(record.key)
    settled |= {trial.key for trial in ended} - ({each.key for each in weights} - {*removed})
    if removed:
        _logger.info("The weights of %s were pruned: %s", counted(len(removed), "trial"), ", ".join(removed))
    return removed


def bytes_of(trial: TrialFolder) -> int:
    """Bytes that a trial's checkpoints take on disk, including those of all its folds."""
    files = [file for best in _checkpoints(trial) for file in best.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _weights(folder: StudyFolder, trial: TrialRecord) -> Weights | None:
    size = bytes_of(folder.trial(trial.key))
    if not size:
        return None
    may_vote = trial.state is TrialState.FINISHED
    return Weights(trial.key, size, trial.score if may_vote else None, trial.task_scores if may_vote else {})


def _checkpoints(trial: TrialFolder) -> list[Path]:
    """A trial's checkpoints. Does not follow links: their targets may belong to something else."""
    return [part.best for part in trial.parts if part.best.is_dir() and not part.best.is_symlink()]


def has_pruned(trial: TrialFolder) -> bool:
    """Whether a checkpoint of the trial was pruned."""
    from tutti.modeling.checkpoint import is_pruned

    return any(is_pruned(part.best) for part in (trial, *trial.folds))


def _predictions(bank: Bank, key: str) -> dict[str, Predictions]:
    """A checkpoint's predictions of the validation rows by task."""
    parts = bank.parts(key)
    return {task: bank.predictions(key, task, _VALIDATION) for task in parts if _VALIDATION in parts[task]}
