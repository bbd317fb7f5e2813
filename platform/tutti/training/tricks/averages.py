"""Averages of a model's weights over training, which can replace the weights for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tutti.config.training import TrainingOptions
from tutti.training.machine.sharding import copy_whole, lerp


@contextmanager
def restored(weights: Sequence[Tensor]) -> Iterator[None]:
    """Gives the weights their present values back after the block, bit for bit."""
    before = [weight.detach().clone() for weight in weights]
    try:
        yield
    finally:
        copy_into(weights, before)


@torch.no_grad()
def copy_into(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)


class WeightAverage:
    """A float32 average of all trainable parameters.

    Subclasses decide when the current weights enter the average; ``updates`` counts how often they did.
    """

    def __init__(self, model: nn.Module) -> None:
        trainable = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        self._names = [name for name, _ in trainable]
        self._weights = [weight for _, weight in trainable]
        self._average = [weight.detach().float().clone() for weight in self._weights]
        self.updates = 0

    def after_step(self) -> None:
        """Must be called after each optimizer step."""

    def after_epoch(self, *, remaining: int) -> None:
        """Must be called after each epoch, with the number of epochs that follow."""

    def _update(self, fraction: float) -> None:
        """Interpolates the average towards the current weights: 0 keeps the average, 1 replaces it."""
        self.updates += 1
        lerp(self._average, self._weights, fraction)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Puts the averaged weights, if any were collected, into the model for the block, then restores its own."""
        if not self.updates:
            yield
            return
        with restored(self._weights):
            copy_into(self._weights, self._average)
            yield

    def state_dict(self) -> dict[str, Tensor]:
        """The average by parameter name, and its number of updates as ``updates``."""
        return {"updates": torch.tensor(self.updates), **dict(zip(self._names, self._average, strict=True))}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the state of a model with the same parameters; its tensors are whole, not shards."""
        self.updates = int(state["updates"])
        for name, average in zip(self._names, self._average, strict=True):
            copy_whole(average, state[name])


class ExponentialAverage(WeightAverage):
    """An exponential moving average over optimizer steps.

    After n updates the decay is ``min(decay, (1 + n) / (10 + n))``, so that the initial weights are soon forgotten
    (the warm-up of ``tf.train.ExponentialMovingAverage``).

    Args:
        decay: in (0, 1); the weight of the previous average in each update.
        warmup: whether it is lower at first; otherwise the initial weights count as scripts without a warm-up have it.
    """

    def __init__(self, model: nn.Module, *, decay: float, warmup: bool = True) -> None:
        super().__init__(model)
        self._decay, self._warmup = decay, warmup

    def after_step(self) -> None:
        updates = self.updates + 1
        self._update(1 - (min(self._decay, (1 + updates) / (10 + updates)) if self._warmup else self._decay))


class EpochAverage(WeightAverage):
    """The unweighted mean of the weights after each of the last epochs (SWA, Izmailov et al. 2018, arXiv 1803.05407).

    Args:
        epochs: how many of the last epochs.
    """

    def __init__(self, model: nn.Module, *, epochs: int) -> None:
        super().__init__(model)
        self._epochs = epochs

    def after_epoch(self, *, remaining: int) -> None:
        if remaining < self._epochs:
            self._update(1 / (self.updates + 1))


def average_of(model: nn.Module, options: TrainingOptions) -> WeightAverage | None:
    """The configured average, or None."""
    if options.ema_decay is not None:
        return ExponentialAverage(model, decay=options.ema_decay, warmup=options.ema_warmup)
    return EpochAverage(model, epochs=options.swa_epochs) if options.swa_epochs else None


@contextmanager
def evaluation_weights(optimizer: Any) -> Iterator[None]:
    """Puts a schedule-free optimizer's averaged weights in place for the block (Defazio et al. 2024, arXiv 2405.15682),
    since it computes gradients at other weights. Those are restored bit for bit afterwards, a loss balance's too.

    Has no effect with other optimizers, which have no evaluation mode.
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper has ``eval`` for every optimizer
    if not hasattr(inner, "eval"):
        yield
        return
    with restored([weight for group in inner.param_groups for weight in group["params"]]):
        inner.eval()
        try:
            yield
        finally:
            inner.train()  # which recomputes them only up to rounding
