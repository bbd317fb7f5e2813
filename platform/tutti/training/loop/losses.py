"""What a trial minimises: each kind's losses, with R-Drop and over several dropout masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tutti.modeling.kinds.protocol import HeadKind, LossOptions


def training_losses(
    kind: HeadKind, outputs: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions, rdrop_alpha: float
) -> Tensor:
    """``(rows,)`` losses that a trial minimises.

    Args:
        outputs: a head's ``(rows, width)``; with ``rdrop_alpha`` above 0 those of rows duplicated by
            ``duplicate_rows``, and the loss is half of R-Drop's (Liang et al. 2021, arXiv 2106.14448). For several
            dropout masks ``(samples, rows, width)``, and the loss is the mean over them.
        labels, scale: as of ``HeadKind.losses``.
    """
    if outputs.shape[: -kind.axes]:
        of_mask = partial(training_losses, kind, scale=scale, options=options, rdrop_alpha=rdrop_alpha)
        return torch.stack([of_mask(each, labels) for each in outputs]).mean(dim=0)
    plain = partial(kind.losses, labels=labels, scale=scale, options=options)
    if not rdrop_alpha:
        return plain(outputs)
    first, second = outputs.chunk(2)
    return (plain(first) + plain(second)) / 2 + rdrop_alpha / 2 * kind.divergences(first, second, scale=scale)


def duplicate_rows(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """``(rows, ...)`` tensors to ``(2 * rows, ...)``, so that one forward pass has two dropout masks for each row."""
    return {name: torch.cat([values, values]) for name, values in inputs.items()}


def step_weights(batches: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Task to what the sum of its row losses over an optimizer step's batches, as of ``TaskRows``, is divided by.

    That gives the mean over the task's rows, times the task's share of the batches.
    """
    of_task: dict[str, list[float]] = {}
    for batch in batches:
        of_task.setdefault(batch["task"], []).append(batch["weight_sum"])
    return {task: sum(own) * len(batches) / len(own) for task, own in of_task.items()}
