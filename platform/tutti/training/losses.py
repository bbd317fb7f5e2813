"""The loss of each row: cross-entropy, focal loss, squared error; and R-Drop over two dropout masks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div


def row_losses(logits: Tensor, labels: Tensor, *, smoothing: float, focal_gamma: float) -> Tensor:
    """``(rows, classes)`` logits and ``(rows,)`` class indices to ``(rows,)`` cross-entropies.

    With ``focal_gamma`` above 0 each is multiplied by ``(1 - p) ** focal_gamma``, where p is the probability of the
    row's own class (Lin et al. 2017, arXiv 1708.02002).

    Labels may also be ``(rows, classes)`` probabilities. The loss is then the mean of what each class would give as the
    row's own, weighed by them (Hinton et al. 2015, arXiv 1503.02531, at temperature 1).
    """
    if labels.ndim == 2 and focal_gamma > 0:
        logs = logits.log_softmax(dim=1)
        by_class = -(1 - smoothing) * logs - smoothing * logs.mean(dim=1, keepdim=True)
        return (labels * by_class * (1 - logs.exp()).clamp(min=1e-8) ** focal_gamma).sum(dim=1)
    losses = cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    if focal_gamma == 0:
        return losses
    own = -cross_entropy(logits, labels, reduction="none")
    return losses * (1 - own.exp()).clamp(min=1e-8) ** focal_gamma


def row_errors(values: Tensor, labels: Tensor, *, scale: Tensor) -> Tensor:
    """``(rows, 1)`` values and ``(rows,)`` numbers to ``(rows,)`` squared errors, in units of ``scale``."""
    return ((values.squeeze(1) - labels) / scale).square()


def divergences(one: Tensor, other: Tensor) -> Tensor:
    """``(rows, classes)`` logits of two dropout masks to ``(rows,)``: the mean of both Kullback-Leibler divergences."""
    first, second = one.log_softmax(dim=1), other.log_softmax(dim=1)
    there = kl_div(first, second, reduction="none", log_target=True).sum(dim=1)
    back = kl_div(second, first, reduction="none", log_target=True).sum(dim=1)
    return (there + back) / 2


def class_weights(labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """``(rows,)`` float32 row weights under which every class that occurs weighs alike, with the mean they had before.

    Args:
        labels: ``(rows,)`` class indices, or ``(rows, classes)`` probabilities, by which a row then belongs to classes.
        weights: ``(rows,)`` of the rows as they are.
    """
    soft = labels.ndim == 2
    by_class = weights.astype(np.float64) @ labels if soft else np.bincount(labels, weights=weights)
    present = np.count_nonzero(by_class)
    factors = weights.sum(dtype=np.float64) / (present * np.where(by_class > 0, by_class, 1))
    return (weights * (labels @ factors if soft else factors[labels])).astype(np.float32)


def twice(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every row twice, the second time after all others, so that one pass gives two dropout masks."""
    return {name: torch.cat([values, values]) for name, values in inputs.items()}
