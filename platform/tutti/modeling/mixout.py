"""Mixout (Lee, Cho, Kang 2020, arXiv 1909.11299): dropout towards the weights before training in the place of zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tutti.modeling.layers import encoder_layers


class MixoutLinear(nn.Linear):
    """A linear layer that, while training, has each weight at its value before with probability ``share``.

    The rest is scaled so that the expected weight is the trained one, as dropout does with zero for that value.
    Parameters and their names are those of ``nn.Linear``.
    """

    before: Tensor
    share: float

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return linear(input, self.weight, self.bias)
        kept = torch.rand_like(self.weight) >= self.share
        moved = (self.weight - self.before) * kept / (1 - self.share)
        return linear(input, self.before + moved, self.bias)


def add_mixout(encoder: nn.Module, *, share: float, new_layers: int = 0) -> None:
    """Turns the encoder's linear layers into ones with mixout towards the weights that they have now.

    Args:
        new_layers: so many of its top layers are left out: they start from a random draw that holds nothing to keep.
    """
    layers = encoder_layers(encoder)[1] if new_layers else ()
    new = {module for layer in layers[len(layers) - new_layers :] for module in layer.modules()}
    for module in encoder.modules():
        if type(module) is nn.Linear and module not in new:
            module.__class__ = MixoutLinear
            module.share = share  # type: ignore[assignment]
            module.register_buffer("before", module.weight.detach().clone(), persistent=False)
