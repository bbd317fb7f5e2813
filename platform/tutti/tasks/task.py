"""The task: a small value object that all later rooms share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tutti.tasks.kinds.protocol import Kind
from tutti.tasks.kinds.registry import KINDS


@dataclass(frozen=True)
class Task:
    """One labelled problem.

    Attributes:
        name: the task's key in the study file.
        names: what its outputs are, in their order: classes or labels as written in the task's files, or columns of
            numbers. Empty for a single number.
        pair: whether a row has two texts.
        metric: as in ``tutti.tasks.metrics``.
        submission: one of ``competition``, ``glue``, ``csv``.
        kind_name: a name of ``KINDS``; by default ``classes``, or ``value`` without ``names``.
    """

    name: str
    names: tuple[str, ...]
    pair: bool
    metric: str
    submission: str
    kind_name: str = field(default="")

    def __post_init__(self) -> None:
        if not self.kind_name:
            object.__setattr__(self, "kind_name", default_kind(self.names))

    @property
    def kind(self) -> Kind:
        """What its labels and predictions are."""
        return KINDS[self.kind_name]

    @property
    def outputs(self) -> int:
        """Number of predicted values of a row: one for each of its names, or 1."""
        return len(self.names) or 1

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task:
        """The inverse of ``asdict``, from JSON too, which has lists for tuples.

        Studies that began before there were several kinds named the outputs ``class_names``.
        """
        values = {**values, "names": tuple(values.get("names", values.get("class_names", ())))}
        values.pop("class_names", None)
        return cls(**values)


def default_kind(names: tuple[str, ...]) -> str:
    """The kind of tasks and predictions that do not say it: they are from before there were several."""
    return "classes" if names else "value"
