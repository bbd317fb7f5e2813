"""What a trial minimises: each kind's losses, with R-Drop and over several dropout masks."""

from __future__ import annotations

from functools import partial

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
    *masks, _, _ = outputs.shape
    if masks:
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
