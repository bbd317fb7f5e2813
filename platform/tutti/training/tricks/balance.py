"""Balancing of the tasks' losses against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tutti.modeling.kinds.registry import head_kind
from tutti.tasks.task import Task

TEMPERATURE = 2.0  # of the dynamic weight average, as in the paper


class FixedBalance:
    """Turns a task's loss into its contribution to the minimised loss: here the loss times a fixed factor."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)

    def __call__(self, task: str, loss: Tensor, share: float) -> Tensor:
        """The balanced loss of one batch, which is the fraction ``share`` of the optimizer step."""
        return loss * self._weights.get(task, 1.0)

    def parameters(self) -> list[nn.Parameter]:
        """Parameters that the optimizer trains in addition to the model's."""
        return []

    def end_epoch(self, losses: Mapping[str, float]) -> None:
        """Receives each task's mean loss over the epoch, the same on every rank."""

    def state(self) -> dict[str, float]:
        """The state to resume from, which ``load`` restores."""
        return {}

    def load(self, state: Mapping[str, float]) -> None:
        """Restores a ``state``."""


class UncertaintyBalance(FixedBalance):
    """Learned homoscedastic uncertainty (Kendall, Gal, Cipolla 2018, arXiv 1705.07115).

    With s the log variance of a task, classification contributes ``exp(-s) * loss + s / 2`` and regression
    ``exp(-s) * loss / 2 + s / 2``. s starts at 0 and has its own learning rate. Task weights multiply the whole term:
    s would learn to undo a factor of the loss alone.
    """

    def __init__(
        self, tasks: Sequence[Task], weights: Mapping[str, float], *, device: torch.device, ordered: str = "softmax"
    ) -> None:
        super().__init__(weights)
        self._factors = {task.name: head_kind(task.kind_name, ordered=ordered).uncertainty for task in tasks}
        self._log_variances = {task.name: nn.Parameter(torch.zeros((), device=device)) for task in tasks}

    def __call__(self, task: str, loss: Tensor, share: float) -> Tensor:
        log_variance = self._log_variances[task]
        own = loss * self._factors[task] * (-log_variance).exp() + share * log_variance / 2
        return super().__call__(task, own, share)

    def parameters(self) -> list[nn.Parameter]:
        return list(self._log_variances.values())

    def state(self) -> dict[str, float]:
        return {task: log_variance.item() for task, log_variance in self._log_variances.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, float]) -> None:
        for task, log_variance in self._log_variances.items():
            log_variance.fill_(state[task])


class DynamicBalance(FixedBalance):
    """Dynamic weight average (Liu, Johns, Davison 2019, arXiv 1803.10704).

    From the third epoch of a stage, tasks whose loss fell less between the last two epochs get larger weights. The
    weights sum to the number of tasks; the configured task weights multiply them.
    """

    def __init__(self, tasks: Sequence[Task], weights: Mapping[str, float]) -> None:
        super().__init__(weights)
        self._dynamic = {task.name: 1.0 for task in tasks}
        self._last_losses: dict[str, float] = {}

    def __call__(self, task: str, loss: Tensor, share: float) -> Tensor:
        return super().__call__(task, loss, share) * self._dynamic[task]

    def end_epoch(self, losses: Mapping[str, float]) -> None:
        if self._last_losses:
            ratios = {task: losses[task] / max(self._last_losses[task], 1e-12) for task in self._dynamic}
            exponentials = {task: math.exp(min(ratio, 50.0) / TEMPERATURE) for task, ratio in ratios.items()}
            total = sum(exponentials.values())
            self._dynamic = {task: len(ratios) * exponential / total for task, exponential in exponentials.items()}
        self._last_losses = dict(losses)

    def state(self) -> dict[str, float]:
        weights = {f"weight/{task}": value for task, value in self._dynamic.items()}
        return weights | {f"last/{task}": value for task, value in self._last_losses.items()}

    def load(self, state: Mapping[str, float]) -> None:
        self._dynamic = {task: state[f"weight/{task}"] for task in self._dynamic}
        prefix = "last/"
        self._last_losses = {key.removeprefix(prefix): loss for key, loss in state.items() if key.startswith(prefix)}


def make_balance(
    kind: str, tasks: Sequence[Task], weights: Mapping[str, float], *, device: torch.device, ordered: str = "softmax"
) -> FixedBalance:
    """The balance named ``fixed``, ``uncertainty`` or ``dynamic``.

    Args:
        ordered: the head of ordered classes.
    """
    match kind:
        case "uncertainty":
            return UncertaintyBalance(tasks, weights, device=device, ordered=ordered)
        case "dynamic":
            return DynamicBalance(tasks, weights)
    return FixedBalance(weights)
