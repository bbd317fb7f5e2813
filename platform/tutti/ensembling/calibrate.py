"""How much an ensemble's confidence can be believed, and one number that makes it more so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_PROBABILITY = 1e-7
"""A probability is never taken for less, so that its logarithm is finite and one wrong row does not outweigh all."""

_RANGE = (0.02, 20.0)  # temperatures that are looked through


def log_probabilities(probabilities: np.ndarray) -> np.ndarray:
    """The logarithms, of any shape, in float64; of float32 they are taken in float32."""
    return np.log(np.maximum(probabilities, LEAST_PROBABILITY)).astype(np.float64)


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities at another temperature, ``(rows, classes)`` float32: below 1 surer, above 1 less sure.

    The order of the classes stays. The temperature 1 changes nothing at all.
    """
    if temperature == 1:
        return probabilities
    logs = log_probabilities(probabilities) / temperature
    logs -= logs.max(axis=1, keepdims=True, initial=-np.inf)
    said = np.exp(logs)
    return (said / said.sum(axis=1, keepdims=True)).astype(np.float32)


def fit_temperature(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The temperature of the lowest log-loss on these rows (Guo et al. 2017), from 0.02 to 20.

    For what an ensemble says, not for its members: averaging makes their confidence lower, so members that are
    calibrated one by one make an ensemble that is not (arXiv 2007.08792). One row more is thought of that could be of
    any class: where all rows are right, they make it no surer than so many rows can tell.

    Args:
        probabilities: ``(rows, classes)``.
        labels: ``(rows,)`` class indices.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    if not len(labels):
        return 1.0
    logs = log_probabilities(probabilities)
    unknown = 1 / (len(labels) + 1)  # the share of that row
    true = (1 - unknown) * logs[np.arange(len(labels)), labels] + unknown * logs.mean(axis=1)

    def loss(log_temperature: float) -> float:
        cold = np.exp(-log_temperature)
        most = logs.max(axis=1)
        return float((np.log(np.exp((logs - most[:, None]) * cold).sum(axis=1)) + (most - true) * cold).mean())

    return float(np.exp(minimize_scalar(loss, bounds=np.log(_RANGE), method="bounded", options={"xatol": 1e-3}).x))


@dataclass(frozen=True)
class Bin:
    """Rows whose confidence lies in one of equally wide ranges.

    Attributes:
        rows: how many; at least one.
        confidence: their mean highest probability.
        accuracy: the share of them that is right.
    """

    rows: int
    confidence: float
    accuracy: float


def reliability(probabilities: np.ndarray, labels: np.ndarray, *, bins: int = 15) -> tuple[Bin, ...]:
    """How right rows of each confidence are (Guo et al. 2017, figure 1), from the lowest confidence up.

    Args:
        probabilities: ``(rows, classes)``.
        labels: ``(rows,)`` class indices.
    """
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    groups = ((place == each).nonzero()[0] for each in np.unique(place))
    return tuple(Bin(len(rows), float(confidence[rows].mean()), float(right[rows].mean())) for rows in groups)


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, *, bins: int = 15) -> float:
    """The mean distance between confidence and accuracy over equally wide bins of confidence (Naeini et al. 2015).

    Args:
        probabilities: ``(rows, classes)``, at least one row.
        labels: ``(rows,)`` class indices.

    Returns:
        From 0 to 1; each bin counts by its share of rows.
    """
    groups = reliability(probabilities, labels, bins=bins)
    return sum(each.rows * abs(each.accuracy - each.confidence) for each in groups) / len(labels)
