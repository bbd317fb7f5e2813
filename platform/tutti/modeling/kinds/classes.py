"""The head of classes: a logit for each."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, one_hot

from tutti.modeling.kinds.protocol import HeadKind, LossOptions


class ClassesHead(HeadKind):
    """Logits of a softmax; the loss is the cross-entropy."""

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        return head.softmax(dim=1)

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        """``(rows, classes)`` logits and ``(rows,)`` class indices to ``(rows,)`` cross-entropies.

        With ``focal_gamma`` above 0, each is multiplied by ``(1 - p) ** focal_gamma``, where p is the predicted
        probability of the row's label.

        Labels may also be ``(rows, classes)`` probabilities. The loss is then the expectation, under these
        probabilities, of the loss with each class as the label (Hinton et al. 2015, arXiv 1503.02531, temperature 1).
        """
        smoothing = options.smoothing
        if options.focal_gamma == 0:
            return cross_entropy(head, labels, reduction="none", label_smoothing=smoothing)
        if labels.ndim == 1:
            labels = one_hot(labels, head.shape[1])
        log_probabilities = head.log_softmax(dim=1)
        by_class = -(1 - smoothing) * log_probabilities - smoothing * log_probabilities.mean(dim=1, keepdim=True)
        return (labels * by_class * (1 - log_probabilities.exp()).clamp(min=1e-8) ** options.focal_gamma).sum(dim=1)

    def balanced(self, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return balanced_classes(labels, weights)

    def divergences(self, first: Tensor, second: Tensor, *, scale: Tensor) -> Tensor:
        """The mean of both Kullback-Leibler divergences."""
        first, second = first.log_softmax(dim=1), second.log_softmax(dim=1)
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
