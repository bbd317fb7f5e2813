"""The heads of ordered classes beside the softmax: one value on the scale of their indices, and CORN."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from tutti.modeling.kinds.classes import balanced_classes
from tutti.modeling.kinds.protocol import HeadKind, LossOptions

_WIDTH = 0.5
"""Standard deviation, in classes, of the probabilities around a value: the class nearest to it has four fifths."""


class OrderedValueHead(HeadKind):
    """One value: the index of the class, learnt by its squared error. Probabilities fall with the distance to it."""

    standardized: ClassVar[bool] = True
    uncertainty: ClassVar[float] = 0.5

    def width(self, outputs: int) -> int:
        return 1

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        """A discrete normal distribution around the value, which lies within the range of indices."""
        value = head.clamp(0, outputs - 1)
        return (-(((torch.arange(outputs, device=head.device) - value) / _WIDTH) ** 2) / 2).softmax(dim=1)

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        """``(rows, 1)`` values and ``(rows,)`` indices, or ``(rows, classes)`` probabilities, to squared errors."""
        if labels.ndim == 2:
            labels = labels @ torch.arange(labels.shape[1], device=labels.device, dtype=labels.dtype)
        return ((head.squeeze(1) - labels) / scale).square()

    def balanced(self, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return balanced_classes(labels, weights)

    def divergences(self, first: Tensor, second: Tensor, *, scale: Tensor) -> Tensor:
        return ((first - second) / scale).square().mean(dim=1)


class CornHead(HeadKind):
    """CORN (Shi, Cao, Raschka 2021, arXiv 2111.08851): for each class but the lowest, whether a row that is at least of
    the class below is of this one or a higher one. Products of these probabilities never rise with the class.
    """

    def width(self, outputs: int) -> int:
        return outputs - 1

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        at_least = head.sigmoid().cumprod(dim=1)  # of each class but the lowest
        ends = torch.ones_like(at_least[:, :1]), torch.zeros_like(at_least[:, :1])
        return torch.cat([ends[0], at_least], dim=1) - torch.cat([at_least, ends[1]], dim=1)

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        """``(rows, classes - 1)`` logits and ``(rows,)`` indices, or ``(rows, classes)`` probabilities, to losses.

        A row counts in the binary cross-entropies of the classes up to the one above its own; each row's are summed, so
        that a head's loss is comparable with the cross-entropy of a softmax.
        """
        shares = one_hot(labels, head.shape[1] + 1).to(head.dtype) if labels.ndim == 1 else labels
        at_least = shares.flip(1).cumsum(dim=1).flip(1)  # 1 for the lowest class
        eligible, higher = at_least[:, :-1], at_least[:, 1:]
        if options.smoothing:
            higher = (1 - options.smoothing) * higher + options.smoothing / 2 * eligible
        lower = eligible - higher
        log_yes, log_no = logsigmoid(head), logsigmoid(-head)
        if options.focal_gamma:
            higher = higher * log_no.exp().clamp(min=1e-8) ** options.focal_gamma
            lower = lower * log_yes.exp().clamp(min=1e-8) ** options.focal_gamma
        return -(higher * log_yes + lower * log_no).sum(dim=1)

    def balanced(self, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return balanced_classes(labels, weights)

    def divergences(self, first: Tensor, second: Tensor, *, scale: Tensor) -> Tensor:
        return ((first.sigmoid() - second.sigmoid()) * (first - second)).sum(dim=1) / 2
