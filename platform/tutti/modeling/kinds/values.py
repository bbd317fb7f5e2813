"""The head of numbers: a value for each, learnt on the standardized scale of the training labels."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from tutti.modeling.kinds.protocol import HeadKind, LossOptions


class ValuesHead(HeadKind):
    """Values; the loss of a row is the mean over its known labels of the squared error in units of ``scale``."""

    standardized: ClassVar[bool] = True
    uncertainty: ClassVar[float] = 0.5

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        return head

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        if labels.ndim == 1:
            return ((head.squeeze(1) - labels) / scale).square()
        known = ~labels.isnan()
        errors = ((head - labels.nan_to_num()) / scale).square() * known
        return errors.sum(dim=1) / known.sum(dim=1).clamp(min=1)

    def divergences(self, first: Tensor, second: Tensor, *, scale: Tensor) -> Tensor:
        return ((first - second) / scale).square().mean(dim=1)
