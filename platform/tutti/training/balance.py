"""How the tasks' losses are weighed against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from tutti.tasks.task import Task

TEMPERATURE = 2.0  # of the dynamic weight average, as in its paper


class LossBalance(Protocol):
    """Turns a task's loss into its part of what is minimised."""

    def __call__(self, task: str, loss: Tensor, share: float) -> Tensor:
        """The balanced loss of one batch, which holds ``share`` of the optimizer step's rows."""

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer trains beside the model."""

    def end_epoch(self, losses: Mapping[str, float]) -> None:
        """Takes the mean loss of each task over the epoch, the same on every rank."""

    def state(self) -> dict[str, float]:
        """Numbers to go on from, which ``load`` takes."""

    def load(self, state: Mapping[str, float]) -> None:
        """Goes on from a ``state``."""


class FixedBalance:
    """Each task's loss times a factor of its own."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)

    def __call__(self, task: str, loss: Tensor, share: float) -> Tensor:
        return loss * self._weights.get(task, 1.0)

    def parameters(self) -> list[nn.Parameter]:
        return []

    def end_epoch(self, losses: Mapping[str, float]) -> None:
        return

    def state(self) -> dict[str, float]:
        return {}

    def load(self, state: Mapping[str, float]) -> None:
        return


class UncertaintyBalance(FixedBalance):
    """Learned homoscedastic uncertainty (Kendall, Gal, Cipolla 2018, arXiv 1705.07115).

    With s the log of a task's variance, a class task gives ``exp(-s) * loss + s / 2`` and a regression
    ``exp(-s) * loss / 2 + s / 2``; s starts at 0 and has a rate of its own. Task weights are factors of the loss.
    """

    def __init__(self, tasks: Sequence[Task], weights: Mapping[str, float], *, device: torch.device) -> None:
        super().__init__(weights)
        self._halved = {task.name: 0.5 if task.regression else 1.0 for task in tasks}
        self._logs = {task.name: nn.Parameter(torch.zeros((), device=device)) for task in tasks}

    def __call__(self, task: str, loss: Tensor, share: float) -> Tensor:
        log = self._logs[task]
        return super().__call__(task, loss, share) * self._halved[task] * (-log).exp() + share * log / 2

    def parameters(self) -> list[nn.Parameter]:
        return list(self._logs.values())

    def state(self) -> dict[str, float]:
        return {task: log.item() for task, log in self._logs.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, float]) -> None:
        for task, log in self._logs.items():
            log.fill_(state[task])


class DynamicBalance(FixedBalance):
    """Dynamic weight average (Liu, Johns, Davison 2019, arXiv 1803.10704).

    From the third epoch of a stage on a task weighs the more the less its loss fell between the last two epochs; the
    weights sum to the number of tasks. Task weights are further factors.
    """

    def __init__(self, tasks: Sequence[Task], weights: Mapping[str, float]) -> None:
        super().__init__(weights)
        self._dynamic = {task.name: 1.0 for task in tasks}
        self._last: dict[str, float] = {}

    def __call__(self, task: str, loss: Tensor, share: float) -> Tensor:
        return super().__call__(task, loss, share) * self._dynamic[task]

    def end_epoch(self, losses: Mapping[str, float]) -> None:
        if self._last:
            fall = {task: losses[task] / max(self._last[task], 1e-12) for task in self._dynamic}
            powers = {task: math.exp(min(ratio, 50.0) / TEMPERATURE) for task, ratio in fall.items()}
            total = sum(powers.values())
            self._dynamic = {task: len(powers) * power / total for task, power in powers.items()}
        self._last = dict(losses)

    def state(self) -> dict[str, float]:
        weights = {f"weight/{task}": value for task, value in self._dynamic.items()}
        return weights | {f"last/{task}": value for task, value in self._last.items()}

    def load(self, state: Mapping[str, float]) -> None:
        self._dynamic = {task: state[f"weight/{task}"] for task in self._dynamic}
        self._last = {key.removeprefix("last/"): value for key, value in state.items() if key.startswith("last/")}


def make_balance(
    kind: str, tasks: Sequence[Task], weights: Mapping[str, float], *, device: torch.device
) -> LossBalance:
    """The balance named ``fixed``, ``uncertainty`` or ``dynamic``."""
    match kind:
        case "uncertainty":
            return UncertaintyBalance(tasks, weights, device=device)
        case "dynamic":
            return DynamicBalance(tasks, weights)
    return FixedBalance(weights)
