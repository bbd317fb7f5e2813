"""Stacking: one weight for each member, fitted to the labels and shrunk towards equal weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutti.ensembling.methods.protocol import Weighted
from tutti.tasks.kinds.probabilities import log_probabilities, softmax
from tutti.tasks.kinds.protocol import Kind

_SCALES = (0.05, 50.0)  # bounds of the inverse temperature that weights are fitted at
_BLOCK = 2**17  # numbers, one MiB, that a fit passes over at a time


@dataclass(frozen=True)
class Stacking:
    """Stacked generalisation (Wolpert 1992; Breiman 1996) with one weight for each member.

    Probabilities: a logarithmic opinion pool (Genest and Zidek 1986), their weighted geometric mean, with weights that
    are at least 0 and sum to 1. They have the lowest log-loss (Heskes 1998) at the temperature that suits them best;
    without one, overconfident members would be weighed by their confidence. The temperature itself is left to
    calibration. A class without a fitted row keeps its probability.

    Values of compared texts: the same weights, by the probability of the better one. Their weighted mean is that pool.

    Values: ridge regression of the plain mean's error on the members' deviations from the mean, several columns at
    once, each in units of its spread.

    Both shrink towards equal weights. A single member is returned unchanged. Copies of all members change nothing,
    since the penalty grows with their number.

    Args:
        penalty: of the squared distance from equal weights, times the number of members. On unseen rows of the data
            sets of benchmarks/auto_method.py 3 to 10 do equally well; 1 loses on few rows, and 30 gains half as much.
    """

    kind: Kind
    penalty: float = 10.0

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> LogPool | Weighted:
        strength = self.penalty * len(votes)
        if self.kind.probabilistic or self.kind.comparative:
            truths = self.kind.truths(labels)
            known = np.flatnonzero(truths >= 0)
            logs = log_probabilities(self.kind.distributions(votes))
            fitted = _pool_weights(logs[:, known], truths[known], strength)
            return Weighted(fitted) if self.kind.comparative else LogPool(self.kind, fitted)
        weights = np.full(len(votes), 1 / len(votes))
        if len(votes) > 1 and len(labels):
            weights += _ridge(votes.astype(np.float64), labels.astype(np.float64), strength)
        return Weighted(weights)  # which may be negative


@dataclass(frozen=True, eq=False)
class LogPool:
    """The weighted geometric mean of probabilities."""

    kind: Kind
    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        logs = np.zeros(self.kind.distributions(votes[0]).shape)
        for weight, vote in zip(self.weights, votes, strict=True):
            logs += weight * log_probabilities(self.kind.distributions(vote))
        return self.kind.from_distributions(softmax(logs), votes.shape[1]).astype(np.float32)


class _Block:
    """Some rows' part of the log-likelihood, in memory of its own: few enough rows for the processor's cache.

    Args:
        logs: ``(members, rows, classes)`` log-probabilities.
        labels: ``(rows,)`` class indices.
    """

    def __init__(self, logs: np.ndarray, labels: np.ndarray) -> None:
        self._flat = np.ascontiguousarray(logs).reshape(len(logs), -1)
        self._own = (np.arange(len(labels)), labels)
        self._pooled, self._scaled, self._errors = (np.empty(logs.shape[1:]) for _ in range(3))

    def __call__(self, weights: np.ndarray, scale: float) -> tuple[float, np.ndarray, float]:
        """The log-likelihood, and the sums over rows of the errors times each member's and the pooled logarithms."""
        pooled, scaled, errors = self._pooled, self._scaled, self._errors
        np.matmul(weights, self._flat, out=pooled.reshape(-1))
        np.multiply(pooled, scale, out=scaled)
        scaled -= _of_rows(np.maximum, scaled)
        np.exp(scaled, out=errors)
        scaled -= np.log(_of_rows(np.add, errors))  # the logarithm of the softmax
        np.exp(scaled, out=errors)
        errors[self._own] -= 1
        flat_errors = errors.reshape(-1)
        return float(scaled[self._own].sum()), self._flat @ flat_errors, float(pooled.reshape(-1) @ flat_errors)


def _of_rows(operation: np.ufunc, array: np.ndarray) -> np.ndarray:
    """``(rows, 1)``: each row reduced. NumPy takes most of the time to begin a row, which two columns avoid."""
    if array.shape[1] == 2:
        return operation(array[:, :1], array[:, 1:])
    return operation.reduce(array, axis=1, keepdims=True)


def _pool_weights(logs: np.ndarray, labels: np.ndarray, strength: float) -> np.ndarray:
    """Weights ``(members,)`` float64 of the lowest penalised log-loss.

    The penalty does not depend on the temperature, so members that know nothing keep equal weights.

    Args:
        logs: ``(members, rows, classes)`` log-probabilities.
        labels: ``(rows,)`` class indices.
    """
    from scipy.optimize import minimize  # slow to import

    members, rows, classes = logs.shape
    length = max(_BLOCK // (members * classes), 1)
    blocks = [
        _Block(logs[:, start : start + length], labels[start : start + length]) for start in range(0, rows, length)
    ]

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its gradient by the weights' logits and the logarithm of the scale."""
        weights, scale = softmax(parameters[None, :-1])[0], np.exp(parameters[-1])
        excess = weights - 1 / members
        log_likelihood, by_logs, by_scale = map(sum, zip(*(block(weights, scale) for block in blocks), strict=True))
        by_weight = scale * by_logs + 2 * strength * excess
        gradient = np.append(weights * (by_weight - weights @ by_weight), scale * by_scale)
        return float(strength * (excess @ excess) - log_likelihood), gradient

    bounds = [(None, None)] * members + [tuple(np.log(_SCALES))]
    fitted = minimize(loss, np.zeros(members + 1), jac=True, bounds=bounds, options={"ftol": 1e-12, "gtol": 1e-6})
    return softmax(fitted.x[None, :-1])[0]


def _ridge(votes: np.ndarray, labels: np.ndarray, alpha: float) -> np.ndarray:
    """Coefficients ``(members,)`` of the members' deviations from their mean; like these, they sum to 0.

    They are 0 where all labels of each column are equal.
    """
    from sklearn.linear_model import Ridge  # slow to import

    labels = labels.reshape(len(labels), -1)
    votes = votes.reshape(*votes.shape[:2], -1)
    scale = np.nanstd(labels, axis=0)
    varied = scale > 0
    if not varied.any():
        return np.zeros(len(votes))
    votes, labels, scale = votes[..., varied], labels[:, varied], scale[varied]
    mean = votes.mean(axis=0)
    deviations, errors = ((votes - mean) / scale).reshape(len(votes), -1), ((labels - mean) / scale).ravel()
    known = ~np.isnan(errors)
    return Ridge(alpha=alpha, fit_intercept=False).fit(deviations[:, known].T, errors[known]).coef_
