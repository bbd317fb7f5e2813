"""The labels of a task as its files have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LabelCells:
    """Labels by the file that they come from, as texts.

    Attributes:
        origin: the training file.
        train: its labels.
        validation: the validation file and its labels; None where rows are held out.
        extra: by further training file its labels, without those of rows with soft labels.
    """

    origin: str
    train: Sequence[str]
    validation: tuple[str, Sequence[str]] | None = None
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
