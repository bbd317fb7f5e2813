"""The task: a small value object that all later rooms share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """One labelled problem.

    Attributes:
        name: the task's key in the study file.
        class_names: labels as written in the task's files, in the order of their class indices. Empty for a regression,
            whose labels are numbers.
        pair: whether a row has two texts.
        metric: as in ``tutti.tasks.metrics``.
        submission: one of ``competition``, ``glue``, ``csv``.
    """

    name: str
    class_names: tuple[str, ...]
    pair: bool
    metric: str
    submission: str

    @property
    def regression(self) -> bool:
        """Whether its labels are numbers rather than classes."""
        return not self.class_names

    @property
    def outputs(self) -> int:
        """Number of outputs of its head: one per class, or 1 for a regression."""
        return len(self.class_names) or 1

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task:
        """The inverse of ``asdict``, from JSON too, which has lists for tuples."""
        return cls(**{**values, "class_names": tuple(values["class_names"])})
