"""Mixout (Lee, Cho, Kang 2020, arXiv 1909.11299): dropout that resets weights to their initial values, not to zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tutti.modeling.layers import encoder_layers


class MixoutLinear(nn.Linear):
    """A linear layer that, in training, resets each weight to its initial value ``before`` with probability ``share``.

    As in dropout, the remaining differences are scaled so that the expected weight equals the trained weight.
    Parameters and their names are those of ``nn.Linear``.
    """

    before: Tensor
    share: float

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return linear(input, self.weight, self.bias)
        mask = torch.rand_like(self.weight) >= self.share
        difference = (self.weight - self.before) * mask / (1 - self.share)
        return linear(input, self.before + difference, self.bias)


def add_mixout(encoder: nn.Module, *, share: float, new_layers: int = 0) -> bool:
    """Applies mixout to the weights of the encoder's linear layers, with their current values as initial ones.

    All other weights, such as embeddings, norms, biases and convolutions, are not mixed.

    Args:
        new_layers: number of top layers without mixout: they were reinitialised, so there is nothing to preserve.

    Returns:
        Whether there are any such layers.
    """
    layers = encoder_layers(encoder)[1] if new_layers else ()
    new_modules = {module for layer in layers[len(layers) - new_layers :] for module in layer.modules()}
    mixed = [module for module in encoder.modules() if type(module) is nn.Linear and module not in new_modules]
    for module in mixed:
        module.__class__ = MixoutLinear
        module.share = share  # type: ignore[assignment]
        module.register_buffer("before", module.weight.detach().clone(), persistent=False)
    return bool(mixed)
