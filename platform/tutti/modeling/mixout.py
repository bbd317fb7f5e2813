"""Mixout (Lee, Cho, Kang 2020, arXiv 1909.11299): dropout towards the pretrained weights in the place of zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class MixoutLinear(nn.Linear):
    """A linear layer that, while training, has each weight at its pretrained value with probability ``share``.

    The rest is scaled so that the expected weight is the trained one, as dropout does with zero for the pretrained
    value. Parameters and their names are those of ``nn.Linear``.
    """

    pretrained: Tensor
    share: float

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return linear(input, self.weight, self.bias)
        kept = torch.rand_like(self.weight) >= self.share
        moved = (self.weight - self.pretrained) * kept / (1 - self.share)
        return linear(input, self.pretrained + moved, self.bias)


def add_mixout(encoder: nn.Module, *, share: float) -> None:
    """Turns every linear layer of the encoder into one with mixout towards the weights that it has now."""
    for module in encoder.modules():
        if type(module) is nn.Linear:
            module.__class__ = MixoutLinear
            module.share = share  # type: ignore[assignment]
            module.register_buffer("pretrained", module.weight.detach().clone(), persistent=False)
