"""Per-row losses: cross-entropy, focal loss, squared error, and the R-Drop divergence between two dropout masks."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, one_hot


def training_losses(
    outputs: Tensor, labels: Tensor, *, scale: Tensor | None, smoothing: float, focal_gamma: float, rdrop_alpha: float
) -> Tensor:
    """``(rows,)`` losses that a trial minimises.

    Args:
        outputs: a head's ``(rows, outputs)``; with ``rdrop_alpha`` above 0 those of rows duplicated by
            ``duplicate_rows``, and the loss is half of R-Drop's (Liang et al. 2021, arXiv 2106.14448). For several
            dropout masks ``(samples, rows, outputs)``, and the loss is the mean over them.
        labels: as for ``row_losses``, or ``(rows,)`` numbers of a regression.
        scale: of a regression's head; None for classification.
    """
    if outputs.ndim == 3:
        of_mask = partial(training_losses, scale=scale, smoothing=smoothing, focal_gamma=focal_gamma)
        return torch.stack([of_mask(each, labels, rdrop_alpha=rdrop_alpha) for each in outputs]).mean(dim=0)

    def plain(own: Tensor) -> Tensor:
        if scale is not None:
            return row_errors(own, labels, scale=scale)
        return row_losses(own, labels, smoothing=smoothing, focal_gamma=focal_gamma)

    if not rdrop_alpha:
        return plain(outputs)
    first, second = outputs.chunk(2)
    apart = divergences(first, second) if scale is None else row_errors(first, second.squeeze(1), scale=scale)
    return (plain(first) + plain(second)) / 2 + rdrop_alpha / 2 * apart


def row_losses(logits: Tensor, labels: Tensor, *, smoothing: float, focal_gamma: float) -> Tensor:
    """``(rows, classes)`` logits and ``(rows,)`` class indices to ``(rows,)`` cross-entropies.

    With ``focal_gamma`` above 0, each is multiplied by ``(1 - p) ** focal_gamma``, where p is the predicted probability
    of the row's label (Lin et al. 2017, arXiv 1708.02002).

    Labels may also be ``(rows, classes)`` probabilities. The loss is then the expectation, under these probabilities,
    of the loss with each class as the label (Hinton et al. 2015, arXiv 1503.02531, at temperature 1).
    """
    if focal_gamma == 0:
        return cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    if labels.ndim == 1:
        labels = one_hot(labels, logits.shape[1])
    log_probabilities = logits.log_softmax(dim=1)
    by_class = -(1 - smoothing) * log_probabilities - smoothing * log_probabilities.mean(dim=1, keepdim=True)
    return (labels * by_class * (1 - log_probabilities.exp()).clamp(min=1e-8) ** focal_gamma).sum(dim=1)


def row_errors(values: Tensor, labels: Tensor, *, scale: Tensor) -> Tensor:
    """``(rows, 1)`` values and ``(rows,)`` numbers to ``(rows,)`` squared errors, in units of ``scale``."""
    return ((values.squeeze(1) - labels) / scale).square()


def divergences(first_logits: Tensor, second_logits: Tensor) -> Tensor:
    """``(rows, classes)`` logits of two dropout masks to ``(rows,)``: the mean of both Kullback-Leibler divergences."""
    first, second = first_logits.log_softmax(dim=1), second_logits.log_softmax(dim=1)
    forward = kl_div(first, second, reduction="none", log_target=True).sum(dim=1)
    backward = kl_div(second, first, reduction="none", log_target=True).sum(dim=1)
    return (forward + backward) / 2


def balanced_classes(labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row weights and labels that give every occurring class the same total weight. The weights' mean is unchanged.

    As by the ``weight`` of ``torch.nn.functional.cross_entropy``, each class's term of a row's loss is weighted.

    Args:
        labels: ``(rows,)`` class indices, or ``(rows, classes)`` probabilities that split a row's weight over classes.
        weights: ``(rows,)`` original row weights.

    Returns:
        ``(rows,)`` float32 weights, and the labels: indices as they are, probabilities shifted to rare classes.
    """
    soft = labels.ndim == 2
    class_totals = weights.astype(np.float64) @ labels if soft else np.bincount(labels, weights=weights)
    class_count = np.count_nonzero(class_totals)
    factors = weights.sum(dtype=np.float64) / (class_count * np.where(class_totals > 0, class_totals, 1))
    if not soft:
        return (weights * factors[labels]).astype(np.float32), labels
    row_factors = labels @ factors
    return (weights * row_factors).astype(np.float32), (labels * factors / row_factors[:, None]).astype(np.float32)


def duplicate_rows(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """``(rows, ...)`` tensors to ``(2 * rows, ...)``, so that one forward pass has two dropout masks for each row."""
    return {name: torch.cat([values, values]) for name, values in inputs.items()}
