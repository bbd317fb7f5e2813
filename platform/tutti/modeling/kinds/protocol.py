"""The kind of a task as its head and its loss see it; ``tutti.tasks.kinds`` has the side of the arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class LossOptions:
    """What changes the loss of every row.

    Attributes:
        smoothing: label smoothing of probabilities, from 0 to 1.
        focal_gamma: exponent of the focal loss of probabilities (Lin et al. 2017, arXiv 1708.02002).
    """

    smoothing: float = 0.0
    focal_gamma: float = 0.0


class HeadKind(Protocol):
    """One sort of head. An instance has no state. Of tags, ``(rows, units)`` stands for ``(rows,)`` of labels, and
    ``(rows, units, width)`` for ``(rows, width)``.

    Attributes:
        axes: of the outputs of one pass: rows and width, and of tags units between them.
        standardized: whether a head's outputs are ``raw * scale + shift``, fitted to the training labels.
        of_inputs: whether each of a row's inputs, its candidates, gets a value of its own; otherwise the row does, by
            the mean of its windows.
        uncertainty: factor of the loss in learned uncertainty (Kendall, Gal, Cipolla 2018, arXiv 1705.07115).
    """

    axes: ClassVar[int] = 2
    standardized: ClassVar[bool] = False
    of_inputs: ClassVar[bool] = False
    uncertainty: ClassVar[float] = 1.0

    def width(self, outputs: int) -> int:
        """Number of values that the head gives for each row of a task with so many outputs."""
        return outputs

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        """``(rows, width)`` of the head to the task's ``(rows, outputs)`` float32 predictions.

        Args:
            scale: as of ``losses``; heads of a chain of tags need it.
        """
        ...

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        """``(rows,)`` losses.

        Args:
            head: ``(rows, width)``.
            labels: as ``TaskRows`` gives them.
            scale: of a standardized head; of a chain of tags its transitions; 1 for others.
        """
        ...

    def balanced(self, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row weights and labels that give classes, or no and yes of each label, the same total weight.

        Args:
            labels: as ``losses`` takes them.
            weights: ``(rows,)`` float32.
        """
        return weights, labels

    def divergences(self, first: Tensor, second: Tensor, *, scale: Tensor) -> Tensor:
        """``(rows,)``: how far two passes of the head over the same rows are apart, for R-Drop."""
        ...
