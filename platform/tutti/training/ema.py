"""An exponential moving average of a model's weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """A float32 average of all parameters, which can stand in for them.

    After n updates the decay is ``min(decay, (1 + n) / (10 + n))``, so that the random or pretrained start is soon
    forgotten (the warm-up of ``tf.train.ExponentialMovingAverage``).

    Args:
        decay: in (0, 1); the share that the average keeps at each update.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self._names = [name for name, _ in model.named_parameters()]
        self._weights = [weight for _, weight in model.named_parameters()]
        self._average = [weight.detach().float().clone() for weight in self._weights]
        self._decay = decay
        self._updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Takes the weights as they now are into the average: call it after each optimizer step."""
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        torch._foreach_lerp_(self._average, [weight.detach().float() for weight in self._weights], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model holds the averaged weights while the block runs, and its own again after it."""
        own = [weight.detach().clone() for weight in self._weights]
        self._put(self._average)
        try:
            yield
        finally:
            self._put(own)

    def state_dict(self) -> dict[str, Tensor]:
        """The average by parameter name, and ``updates``, their count: what load_state_dict takes."""
        return {"updates": torch.tensor(self._updates), **dict(zip(self._names, self._average, strict=True))}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a saved state of a model with the same parameters."""
        self._updates = int(state["updates"])
        for name, average in zip(self._names, self._average, strict=True):
            average.copy_(state[name])

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        for weight, value in zip(self._weights, values, strict=True):
            weight.copy_(value)
