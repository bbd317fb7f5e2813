"""One trial with folds: every training row is predicted by the one of its fine-tunings that did not train on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti.bank.bank import Bank
from tutti.errors import StorageError
from tutti.records import CheckpointRecord, Predictions
from tutti.tasks.metrics import score as score_of

if TYPE_CHECKING:
    from tutti.data.encode import EncodedPart
    from tutti.tasks.task import Task
    from tutti.training import EpochReport, FineTuned

Parts = Mapping[str, Mapping[str, "EncodedPart"]]


@dataclass(frozen=True)
class FoldReport:
    """A fold that is whole, with what the trial has reached by then. The same on every rank.

    Attributes:
        fold: counted from 0.
        best: the fold's own best epoch, with its scores on the fold's validation rows.
        score: the mean of the ``best`` scores of all folds that are whole.
        task_scores: per task, the same mean of its metric.
        done: whether it is the last.
    """

    fold: int
    best: CheckpointRecord
    score: float
    task_scores: Mapping[str, float]
    done: bool


def fold_name(fold: int) -> str:
    """The fold's folder in the trial's, and the end of its key: ``fold-0``."""
    return f"fold-{fold}"


def forget_states(trial: Path) -> None:
    """Removes what a trial that has ended would have gone on from: several times the size of its weights.

    Not through a link: what it leads to may be somebody else's.
    """
    for folder in (trial, *trial.glob("fold-*")):
        if not folder.is_symlink():
            shutil.rmtree(folder / "resume", ignore_errors=True)


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
    **settings: Any,
) -> FineTuned:
    """Fine-tunes once for each fold, on the rows of the others, and puts the folds' predictions together.

    A fold's checkpoint lies in ``folder/fold-N/best``. The predictions of a fold that is whole are kept in
    ``folder/resume``, so that a run on the same folder does not train it again: it goes on with the first that is not
    whole. In a process group every rank goes through the same folds in step.

    Args:
        parts: of each task, part ``validation`` being the rows of ``train`` that validate, in their order.
        folds: per task, the fold that each row of ``train`` validates, or -1 for none.
        on_epoch: called with the fold's number, from 0, as ``fine_tune`` calls its own.
        on_fold: called for each fold once it is whole, and first for those that an earlier run left whole.
        settings: what else ``fine_tune`` takes.

    Returns:
        ``predictions`` of part ``validation`` are out-of-fold, those of all others the mean over the folds. Of the
        ``checkpoint`` the scores are those of the out-of-fold rows, ``epoch`` counts folds, and ``path`` is ``folder``.
        On every rank but 0 ``predictions`` is empty.

    Raises:
        What ``fine_tune`` raises.
    """
    from tutti.training import FineTuned, fine_tune
    from tutti.training.ranks import from_rank_zero, rank

    count = 1 + max(int(of_row.max()) for of_row in folds.values())
    kept = Bank(folder / "resume")
    whole: list[CheckpointRecord] = from_rank_zero(lambda: _whole(kept, count))
    for fold in range(len(whole)):
        on_fold(_report(whole[: fold + 1], count))
    for fold in range(len(whole), count):
        place = folder / fold_name(fold)
        done = fine_tune(
            tasks=tasks,
            parts={task: _of_fold(by_part, folds[task], fold) for task, by_part in parts.items()},
            folder=place,
            on_epoch=lambda report, fold=fold: on_epoch(fold, report),  # type: ignore[misc]
            key=key,
            number=number,
            **settings,
        )
        record = replace(done.checkpoint, key=fold_name(fold), number=fold)
        from_rank_zero(lambda record=record, done=done: kept.put(record, done.predictions))  # type: ignore[misc]
        if rank() == 0:
            shutil.rmtree(place / "resume", ignore_errors=True)
        whole.append(record)
        on_fold(_report(whole, count))
    predictions: dict[str, dict[str, Predictions]] = {}

    def put_together() -> dict[str, float]:
        predictions.update(_together(kept, tasks, parts, folds, count))
        return {task.name: _score(task, predictions[task.name]["validation"]) for task in tasks}

    task_scores = from_rank_zero(put_together)
    score = float(np.mean(list(task_scores.values())))
    record = CheckpointRecord(key, number, count, score, task_scores, str(folder), whole[0].parameters)
    return FineTuned(record, predictions)


def _of_fold(by_part: Mapping[str, EncodedPart], of_row: np.ndarray, fold: int) -> dict[str, EncodedPart]:
    """A task's parts for one fold: its rows validate, all others train."""
    from tutti.data.encode import take

    own = of_row[of_row >= 0]
    return {
        **by_part,
        "train": take(by_part["train"], np.flatnonzero(of_row != fold)),
        "validation": take(by_part["validation"], np.flatnonzero(own == fold)),
    }


def _whole(kept: Bank, count: int) -> list[CheckpointRecord]:
    """The first folds that are whole, up to the one to go on with."""
    records = {record.number: record for record in kept.records()}
    found: list[CheckpointRecord] = []
    for fold in range(count):
        if fold not in records or not _readable(kept, records[fold].key):
            break
        found.append(records[fold])
    return found


def _readable(kept: Bank, key: str) -> bool:
    try:
        kept.check(key)
    except StorageError:  # a damaged file: the fold is trained again
        return False
    return True


def _report(whole: Sequence[CheckpointRecord], count: int) -> FoldReport:
    tasks = whole[0].task_scores
    return FoldReport(
        fold=len(whole) - 1,
        best=whole[-1],
        score=float(np.mean([record.score for record in whole])),
        task_scores={task: float(np.mean([record.task_scores[task] for record in whole])) for task in tasks},
        done=len(whole) == count,
    )


def _together(
    kept: Bank, tasks: Sequence[Task], parts: Parts, folds: Mapping[str, np.ndarray], count: int
) -> dict[str, dict[str, Predictions]]:
    """Out-of-fold predictions of the validation rows, and the folds' mean of all other rows."""
    found: dict[str, dict[str, Predictions]] = {}
    for task in tasks:
        found[task.name] = {}
        own = folds[task.name][folds[task.name] >= 0]
        for name, part in parts[task.name].items():
            if name == "train":
                continue
            said = [kept.predictions(fold_name(fold), task.name, name).numbers for fold in range(count)]
            if name == "validation":
                numbers = np.empty((len(part.ids), *said[0].shape[1:]), dtype=np.float32)
                for fold, of_fold in enumerate(said):
                    numbers[own == fold] = of_fold
            else:
                numbers = np.stack(said).mean(axis=0, dtype=np.float64).astype(np.float32)
            kind = {"values": numbers} if task.regression else {"probabilities": numbers}
            found[task.name][name] = Predictions(ids=part.ids, labels=part.labels, class_names=task.class_names, **kind)
    return found


def _score(task: Task, said: Predictions) -> float:
    assert said.labels is not None
    return score_of(task.metric, labels=said.labels, predicted=said.numbers)
