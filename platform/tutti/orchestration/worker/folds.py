"""Trials with folds: every training row is predicted by the fold's model that did not train on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti.bank.bank import Bank
from tutti.config.folder import TrialFolder, fold_name
from tutti.data.prepared import is_predicted
from tutti.ensembling.methods.registry import plain_vote
from tutti.errors import StorageError
from tutti.records import CheckpointRecord, Usage
from tutti.tasks.objective import study_score
from tutti.tasks.predictions import Predictions
from tutti.tasks.scorer import Scorer
from tutti.tasks.units import widened

if TYPE_CHECKING:
    from tutti.data.encode import EncodedPart
    from tutti.tasks.task import Task
    from tutti.training import EpochReport, FineTuned

Parts = Mapping[str, Mapping[str, "EncodedPart"]]


@dataclass(frozen=True)
class FoldReport:
    """A complete fold and the trial's scores so far. The same on every rank.

    Attributes:
        fold: zero-based.
        best: the fold's best epoch, with its scores on the fold's validation rows.
        score: mean of the ``best`` scores of all complete folds.
        task_scores: the same mean of each task's metric.
        usage: what the training steps of all complete folds have taken.
        done: whether this is the last fold.
    """

    fold: int
    best: CheckpointRecord
    score: float
    task_scores: Mapping[str, float]
    usage: Usage
    done: bool


def delete_states(trial: TrialFolder) -> None:
    """Deletes the saved states of an ended trial, which are several times the size of its weights."""
    for part in trial.parts:
        shutil.rmtree(part.resume, ignore_errors=True)


def fine_tune_folds(
    *,
    parts: Parts,
    folds: Mapping[str, np.ndarray],
    tasks: Sequence[Task],
    folder: Path,
    key: str,
    number: int,
    on_epoch: Callable[[int, EpochReport], None],
    on_fold: Callable[[FoldReport], None],
    on_saved: Callable[[], None] = lambda: None,
    **settings: Any,
) -> FineTuned:
    """Fine-tunes once per fold on the rows of the other folds, and combines the folds' predictions.

    The predictions of complete folds are saved, so a later run on the same folder (a ``TrialFolder``) continues with
    the first incomplete fold. In a process group all ranks train the same fold at the same time.

    Args:
        parts: encoded rows by task and part. Part ``validation`` has the rows of ``train`` that some fold validates, in
            the same order.
        folds: per task ``(train rows,)``, the fold that each row validates, -1 for none, or ``-2 - fold`` for a row
            that trains in this fold alone.
        on_epoch: called with the zero-based fold and what ``fine_tune`` passes to its own ``on_epoch``.
        on_fold: called for each complete fold; first for those that an earlier run completed.
        on_saved: called on rank 0 after each save, of ``fine_tune`` and of a fold's predictions.
        settings: further arguments of ``fine_tune``.

    Returns:
        ``predictions`` of part ``validation`` are out-of-fold, those of all other parts are means over the folds. The
        scores of ``checkpoint`` are those of the out-of-fold rows, its ``epoch`` is the number of folds, and its
        ``path`` is ``folder``. ``predictions`` is empty on all ranks but 0.

    Raises:
        Errors of ``fine_tune``.
    """
    from tutti.training import FineTuned, fine_tune
    from tutti.training.machine.ranks import from_rank_zero, rank

    count = 1 + max(int(task_folds.max()) for task_folds in folds.values())
    trial = TrialFolder(folder)
    fold_bank = Bank(trial.resume)
    complete: list[CheckpointRecord] = from_rank_zero(lambda: _complete_folds(fold_bank, count))
    for fold in range(len(complete)):
        on_fold(_report(complete[: fold + 1], count))
    for fold in range(len(complete), count):
        result = fine_tune(
            tasks=tasks,
            parts={task: _fold_parts(by_part, folds[task], fold) for task, by_part in parts.items()},
            folder=trial.fold(fold).path,
            on_epoch=partial(on_epoch, fold),
            key=key,
            number=number,
            on_saved=on_saved,
            **settings,
        )
        record = replace(result.checkpoint, key=fold_name(fold), number=fold)
        from_rank_zero(partial(fold_bank.put, record, result.predictions))
        if rank() == 0:
            shutil.rmtree(trial.fold(fold).resume, ignore_errors=True)
            on_saved()
        complete.append(record)
        on_fold(_report(complete, count))
    predictions: dict[str, dict[str, Predictions]] = {}

    def combine() -> dict[str, float]:
        predictions.update(_combined(fold_bank, tasks, parts, folds, count))
        return {task.name: _score(task, predictions[task.name]["validation"], complete) for task in tasks}

    task_scores = from_rank_zero(combine)
    score = study_score(task_scores, tasks)
    parameters, usage = complete[0].parameters, _usage(complete)
    record = CheckpointRecord(key, number, count, score, task_scores, str(folder), parameters, usage)
    return FineTuned(record, predictions)


def trained_in(folds: np.ndarray, fold: int) -> np.ndarray:
    """``(train rows,)`` bool: the rows of other folds, and extra rows but those of another fold alone."""
    return (folds != fold) & ((folds >= -1) | (folds == -2 - fold))


def _fold_parts(by_part: Mapping[str, EncodedPart], folds: np.ndarray, fold: int) -> dict[str, EncodedPart]:
    """A task's parts for one fold: the fold's rows validate, all others train.

    Args:
        folds: ``(train rows,)``, the fold of each row, or -1 for none.
    """
    from tutti.data.encode import take

    validation_folds = folds[folds >= 0]
    return {
        **by_part,
        "train": take(by_part["train"], np.flatnonzero(trained_in(folds, fold))),
        "validation": take(by_part["validation"], np.flatnonzero(validation_folds == fold)),
    }


def _complete_folds(fold_bank: Bank, count: int) -> list[CheckpointRecord]:
    """The complete folds before the first incomplete one."""
    records = {record.number: record for record in fold_bank.records()}
    complete: list[CheckpointRecord] = []
    for fold in range(count):
        if fold not in records or not _is_readable(fold_bank, records[fold].key):
            break
        complete.append(records[fold])
    return complete


def _is_readable(fold_bank: Bank, key: str) -> bool:
    from tutti.training.loop.resume import check_readable

    try:
        fold_bank.check(key)
    except StorageError as error:
        check_readable(error)
        return False  # a damaged file: train the fold again
    return True


def _report(complete: Sequence[CheckpointRecord], count: int) -> FoldReport:
    tasks = complete[0].task_scores
    return FoldReport(
        fold=len(complete) - 1,
        best=complete[-1],
        score=float(np.mean([record.score for record in complete])),
        task_scores={task: float(np.mean([record.task_scores[task] for record in complete])) for task in tasks},
        usage=_usage(complete),
        done=len(complete) == count,
    )


def _usage(complete: Sequence[CheckpointRecord]) -> Usage:
    return sum((record.usage for record in complete if record.usage is not None), Usage())


def _combined(
    fold_bank: Bank, tasks: Sequence[Task], parts: Parts, folds: Mapping[str, np.ndarray], count: int
) -> dict[str, dict[str, Predictions]]:
    """Out-of-fold predictions of the validation rows, and the mean over the folds for all other rows."""
    combined: dict[str, dict[str, Predictions]] = {}
    known = [fold_bank.parts(fold_name(fold)) for fold in range(count)]
    for task in tasks:
        combined[task.name] = {}
        validation_folds = folds[task.name][folds[task.name] >= 0]
        for name, part in parts[task.name].items():
            if not is_predicted(name) or not all(name in of_fold[task.name] for of_fold in known):
                continue  # also a test set that was added after some of the folds
            by_fold = [fold_bank.predictions(fold_name(fold), task.name, name).outputs for fold in range(count)]
            if task.kind.sequential:  # of other rows the longest has as many units
                by_fold = widened(by_fold)
            if name == "validation":
                outputs = np.empty((len(part.ids), *by_fold[0].shape[1:]), dtype=by_fold[0].dtype)
                for fold, of_fold in enumerate(by_fold):
                    outputs[validation_folds == fold] = of_fold
            else:
                outputs = plain_vote(task, np.stack(by_fold))
            combined[task.name][name] = Predictions.of(task, ids=part.ids, outputs=outputs, labels=part.labels)
            for fold, of_fold in enumerate(by_fold if name == "unlabeled" else ()):  # for students of the same folds
                own = Predictions.of(task, ids=part.ids, outputs=of_fold, labels=None)
                combined[task.name][f"{name}-{fold_name(fold)}"] = own
    return combined


def _score(task: Task, predictions: Predictions, folds: Sequence[CheckpointRecord]) -> float:
    """The score of the out-of-fold rows; of a metric of the likelihood, which these do not have, the folds' mean."""
    if task.scored_otherwise:
        return float(np.mean([record.task_scores[task.name] for record in folds]))
    assert predictions.labels is not None
    return Scorer.of(task).score(predictions.labels, predictions.outputs)
