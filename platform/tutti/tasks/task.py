"""What a task is: a small value that every later room passes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """One labelled problem.

    Attributes:
        name: the task's key in the study file.
        class_names: labels as they stand in the task's files; a label's class index is its place here. None for a
            regression, whose labels are numbers.
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
        """Whether its labels are numbers; it has no classes then."""
        return not self.class_names

    @property
    def outputs(self) -> int:
        """Outputs of its head: one for each class, or one value."""
        return len(self.class_names) or 1

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON can hold it."""
        return asdict(self) | {"class_names": list(self.class_names)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task:
        """The task that ``to_dict`` wrote down."""
        return cls(**{**values, "class_names": tuple(values["class_names"])})
