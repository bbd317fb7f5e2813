"""The predictions of several checkpoints for the same rows, read from the bank and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.ensembling.procedure import Ballot
from tutti.errors import Fault, StudyError
from tutti.outputs.election.member_checks import AGAIN, LABELLED, SPLIT, other_rows, owner_of
from tutti.outputs.formatting import called
from tutti.records import CheckpointRecord
from tutti.tasks.scorer import Scorer

if TYPE_CHECKING:
    from tutti.tasks.task import Task


def ballot_of(bank: Checkpoints, task: Task, records: Sequence[CheckpointRecord], groups: np.ndarray) -> Ballot:
    """The votes of checkpoints on a task's validation rows."""
    _, labels, stacked = stacked_votes(bank, task, LABELLED, [record.key for record in records])
    if labels is None:
        raise StudyError(Fault(f"{called(records[0].key)}, {task.name}/{LABELLED}", "have labels", "none", AGAIN))
    return Ballot(stacked, labels, Scorer.of(task), groups, task.weight)


def stacked_votes(
    bank: Checkpoints, task: Task, part: str, keys: Sequence[str]
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Ids, labels and stacked votes of some checkpoints, checked to be for the same rows and classes."""
    first = bank.predictions(keys[0], task.name, part)
    stacked = np.empty((len(keys), *first.outputs.shape), dtype=first.outputs.dtype)
    for index, key in enumerate(keys):
        predictions = first if index == 0 else bank.predictions(key, task.name, part)
        what, remedy = f"{called(key)}, {task.name}/{part}", AGAIN
        if (predictions.kind_name, predictions.names) != (task.kind_name, task.names):
            rule = f"hold predictions of {task.kind.describe(task.names, most=len(task.names))}"
            got = predictions.kind.describe(predictions.names, most=len(predictions.names))
            raise StudyError(Fault(what, rule, got, remedy))
        if not (np.array_equal(predictions.ids, first.ids) and _equal(predictions.labels, first.labels)):
            rule = f"hold the rows and labels that {called(keys[0])} holds, in the same order"
            if owner_of(key) != owner_of(keys[0]):
                remedy = SPLIT
            raise StudyError(Fault(what, rule, other_rows(first.ids, predictions.ids), remedy))
        if predictions.outputs.shape != first.outputs.shape:
            rule, got = f"hold outputs of shape {first.outputs.shape}", f"{predictions.outputs.shape}"
            raise StudyError(Fault(what, rule, got, remedy))
        stacked[index] = predictions.outputs
    return first.ids, first.labels, stacked


def _equal(left: np.ndarray | None, right: np.ndarray | None) -> bool:
    if left is None or right is None:
        return left is right
    return np.array_equal(left, right, equal_nan=right.dtype.kind == "f")
