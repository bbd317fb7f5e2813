"""Averages of a model's weights over its training, which can stand in for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tutti.training.sharding import copy_whole, lerp


class WeightAverage:
    """A float32 average of all parameters that are trained.

    Subclasses say when the weights as they are go into it; ``taken`` counts how often they did.
    """

    def __init__(self, model: nn.Module) -> None:
        trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        self._names = [name for name, _ in trained]
        self._weights = [weight for _, weight in trained]
        self._average = [weight.detach().float().clone() for weight in self._weights]
        self.taken = 0

    def after_step(self) -> None:
        """To be called after each optimizer step."""

    def after_epoch(self, *, left: int) -> None:
        """To be called after each epoch, with the number of epochs that follow."""

    @torch.no_grad()
    def _take(self, share: float) -> None:
        """Moves the average towards the weights by ``share`` of the way."""
        self.taken += 1
        lerp(self._average, self._weights, share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model holds the averaged weights while the block runs, if there are any, and its own again after it."""
        if not self.taken:
            yield
            return
        own = [weight.detach().clone() for weight in self._weights]
        self._put(self._average)
        try:
            yield
        finally:
            self._put(own)

    def state_dict(self) -> dict[str, Tensor]:
        """The average by parameter name, and ``updates``, their count: what load_state_dict takes."""
        return {"updates": torch.tensor(self.taken), **dict(zip(self._names, self._average, strict=True))}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a saved state of a model with the same parameters, each of them whole."""
        self.taken = int(state["updates"])
        for name, average in zip(self._names, self._average, strict=True):
            copy_whole(average, state[name])

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        for weight, value in zip(self._weights, values, strict=True):
            weight.copy_(value)


class ExponentialAverage(WeightAverage):
    """An exponential moving average over optimizer steps.

    After n updates the decay is ``min(decay, (1 + n) / (10 + n))``, so that the random or pretrained start is soon
    forgotten (the warm-up of ``tf.train.ExponentialMovingAverage``).

    Args:
        decay: in (0, 1); the share that the average keeps at each update.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        super().__init__(model)
        self._decay = decay

    def after_step(self) -> None:
        updates = self.taken + 1
        self._take(1 - min(self._decay, (1 + updates) / (10 + updates)))


class EpochAverage(WeightAverage):
    """The plain mean of the weights after each of the last epochs (SWA, Izmailov et al. 2018, arXiv 1803.05407).

    Args:
        epochs: how many.
    """

    def __init__(self, model: nn.Module, *, epochs: int) -> None:
        super().__init__(model)
        self._epochs = epochs

    def after_epoch(self, *, left: int) -> None:
        if left < self._epochs:
            self._take(1 / (self.taken + 1))


def make_average(model: nn.Module, *, ema_decay: float | None, swa_epochs: int) -> WeightAverage | None:
    """The average that is asked for, or none."""
    if ema_decay is not None:
        return ExponentialAverage(model, decay=ema_decay)
    return EpochAverage(model, epochs=swa_epochs) if swa_epochs else None


@contextmanager
def found_weights(optimizer: Any, model: nn.Module) -> Iterator[None]:
    """While the block runs the model holds what a schedule-free optimizer has found (Defazio et al. 2024, arXiv
    2405.15682), which is not where it takes its gradients; after it the weights are what they were, bit for bit.

    Other optimizers have no such mode, and nothing is done.
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's own has the mode whatever it holds
    if not hasattr(inner, "eval"):
        yield
        return
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    own = [weight.detach().clone() for weight in weights]
    inner.eval()
    try:
        yield
    finally:
        inner.train()
        with torch.no_grad():  # it computes them back, but for rounding
            for weight, before in zip(weights, own, strict=True):
                weight.copy_(before)
