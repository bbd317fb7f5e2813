"""Predictions of one checkpoint, as banks store them and ensembles combine them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutti.errors import Fault, StorageError
from tutti.tasks.kinds.protocol import Kind
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.task import Task, default_kind


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of one checkpoint for one part of one task, with rows in the order of the part's file.

    Attributes:
        ids: ``(rows,)`` of str, unique.
        outputs: float32 in the kind's shape: ``(rows, outputs)`` probabilities or values, or ``(rows,)`` values.
        labels: in the kind's shape: ``(rows,)`` int64 classes, or float32; None where the part has no labels.
        names: ``(outputs,)``, as of the task; empty for a single number.
        kind_name: a name of ``KINDS``; by default ``classes``, or ``value`` without ``names``.
        log_probabilities: ``(rows,)`` float32, of texts those that the model gave them; None for other kinds.

    Raises:
        StorageError: where shapes disagree, an id is repeated, or outputs or labels are not what the kind has.
    """

    ids: np.ndarray
    outputs: np.ndarray
    labels: np.ndarray | None = None
    names: tuple[str, ...] = ()
    kind_name: str = ""
    log_probabilities: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        task: Task,
        *,
        ids: np.ndarray,
        outputs: np.ndarray,
        labels: np.ndarray | None,
        log_probabilities: np.ndarray | None = None,
    ) -> Predictions:
        """Predictions of a task."""
        return cls(ids, outputs, labels, task.names, task.kind_name, log_probabilities)

    @property
    def kind(self) -> Kind:
        return KINDS[self.kind_name]

    def __post_init__(self) -> None:
        if not self.kind_name:
            object.__setattr__(self, "kind_name", default_kind(self.names))
        if len(set(self.ids.tolist())) != len(self.ids):
            raise _broken("hold every id once", "a duplicate id")
        if len(self.outputs) != len(self.ids):
            raise _broken(f"have predictions for each of its {len(self.ids)} rows", f"for {len(self.outputs)}")
        if fault := self.kind.fault(self.outputs, self.labels, self.names):
            raise _broken(*fault)


def _broken(rule: str, got: str) -> StorageError:
    remedy = "restore the file from a copy, or move the trial's folder out of the bank: it has no vote then"
    return StorageError(Fault("a set of predictions", rule, got, remedy))
