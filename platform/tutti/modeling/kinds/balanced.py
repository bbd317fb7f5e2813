"""Class weights."""

from __future__ import annotations

import numpy as np


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
