"""The heads of preferences: a value for each text, learnt from the difference within pairs."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from tutti.modeling.kinds.choice import ABSENT
from tutti.modeling.kinds.protocol import HeadKind, LossOptions


class PreferenceHead(HeadKind):
    """Values whose difference is the log-odds that the first text is better (Bradley and Terry 1952); the loss of a
    pair is its cross-entropy, as of reward models (Ouyang et al. 2022, arXiv 2203.02155).
    """

    of_inputs: ClassVar[bool] = True

    def width(self, outputs: int) -> int:
        return 1

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        """``(rows, 2)`` values, NaN in place of the second one of rows with a single text."""
        return head.masked_fill(head < ABSENT / 2, float("nan"))

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        """``(rows, 2)`` values, the better text's first, to ``(rows,)`` losses."""
        difference = head[:, 0] - head[:, 1]
        half = options.smoothing / 2
        likely, unlikely = logsigmoid(difference), logsigmoid(-difference)
        return -((1 - half) * likely * unlikely.exp().clamp(min=1e-8) ** options.focal_gamma + half * unlikely)

    def divergences(self, first: Tensor, second: Tensor, *, scale: Tensor) -> Tensor:
        """The mean of both Kullback-Leibler divergences."""
        one, other = first[:, 0] - first[:, 1], second[:, 0] - second[:, 1]
        return (one.sigmoid() - other.sigmoid()) * (one - other) / 2


class MarginHead(PreferenceHead):
    """The loss of a pair is what its difference lacks of 1 (a hinge): pairs far enough apart are left alone."""

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        return relu(1 - head[:, 0] + head[:, 1])

    def divergences(self, first: Tensor, second: Tensor, *, scale: Tensor) -> Tensor:
        return torch.square(first[:, 0] - first[:, 1] - second[:, 0] + second[:, 1])
