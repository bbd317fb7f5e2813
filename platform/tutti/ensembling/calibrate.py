"""Temperature scaling of an ensemble's probabilities, and measures of their calibration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutti.tasks.kinds.probabilities import log_probabilities, softmax
from tutti.tasks.kinds.protocol import Kind

_BINS = 15  # of confidence
_RANGE = (0.02, 20.0)  # bounds of the fitted temperature


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities ``(rows, classes)`` at a temperature: below 1 more confident, above 1 less confident.

    The order of the classes stays. Temperature 1 returns the input unchanged; otherwise the result is float64, since
    in float32 many confident rows would have a confidence of exactly 1.
    """
    if temperature == 1:
        return probabilities
    return softmax(log_probabilities(probabilities.astype(np.float64)) / temperature)


def known_units(kind: Kind, outputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(units, alternatives)`` probabilities and ``(units,)`` truths of those units whose truth is known."""
    distributions, truths = kind.distributions(outputs), kind.truths(labels)
    if (truths >= 0).all():
        return distributions, truths
    return distributions[truths >= 0], truths[truths >= 0]


def fit_temperature(probabilities: np.ndarray, labels: np.ndarray, *, own: bool = False) -> float:
    """The temperature, from 0.02 to 20, with the lowest log-loss on these rows (Guo et al. 2017).

    It is fitted on the ensemble, not on its members: averaging lowers confidence, so calibrated members do not make a
    calibrated ensemble (arXiv 2007.08792). One extra row with a uniform label keeps the temperature from going to its
    lower bound when all rows are right.

    Args:
        probabilities: ``(rows, classes)``.
        labels: ``(rows,)`` class indices.
        own: whether rows have alternatives of their own, so that one without any probability is none of the row's.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    if not len(labels):
        return 1.0
    logs = log_probabilities(probabilities)
    has = probabilities > 0 if own else np.ones_like(logs, dtype=bool)
    mean = np.where(has, logs, 0).sum(axis=1) / has.sum(axis=1)
    logs = np.where(has, logs, -np.inf)
    extra = 1 / (len(labels) + 1)  # weight of the extra row
    target = (1 - extra) * logs[np.arange(len(labels)), labels] + extra * mean

    def loss(log_temperature: float) -> float:
        inverse = np.exp(-log_temperature)
        highest = logs.max(axis=1)
        normalizer = np.log(np.exp((logs - highest[:, None]) * inverse).sum(axis=1))
        return float((normalizer + (highest - target) * inverse).mean())

    return float(np.exp(minimize_scalar(loss, bounds=np.log(_RANGE), method="bounded", options={"xatol": 1e-3}).x))


@dataclass(frozen=True)
class Bin:
    """Rows whose confidence lies in one of several ranges of equal width.

    Attributes:
        rows: number of rows, at least one.
        confidence: their mean highest probability.
        accuracy: the share of them that is right.
    """

    rows: int
    confidence: float
    accuracy: float


def reliability(probabilities: np.ndarray, labels: np.ndarray) -> tuple[Bin, ...]:
    """Accuracy by confidence (Guo et al. 2017, figure 1): the non-empty bins, by ascending confidence.

    Args:
        probabilities: ``(rows, classes)``.
        labels: ``(rows,)`` class indices.
    """
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    bin_of_row = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    groups = ((bin_of_row == number).nonzero()[0] for number in np.unique(bin_of_row))
    return tuple(Bin(len(rows), float(confidence[rows].mean()), float(right[rows].mean())) for rows in groups)


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The mean distance between confidence and accuracy over 15 bins, weighted by rows (Naeini et al. 2015), 0 to 1.

    Args:
        probabilities: ``(rows, classes)``, at least one row.
        labels: ``(rows,)`` class indices.
    """
    groups = reliability(probabilities, labels)
    return sum(group.rows * abs(group.accuracy - group.confidence) for group in groups) / len(labels)
