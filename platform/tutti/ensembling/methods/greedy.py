"""Greedy forward selection of members with replacement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tutti.ensembling.methods.protocol import Weighted
from tutti.tasks.kinds.probabilities import LEAST_PROBABILITY
from tutti.tasks.kinds.protocol import Kind

_FACTORS = 4  # the product of four numbers, each at least LEAST_PROBABILITY, does not underflow in float32


@dataclass(frozen=True)
class Greedy:
    """Forward selection with replacement (Caruana et al. 2004) on log-loss, or on squared error for values.

    Each step adds the member that lowers the loss of the mean most. A member may be added several times; its weight is
    its count among the additions up to the best mean of ``steps``. Weights are averaged over ``bags`` runs, each on
    half of the rows drawn without replacement, to reduce overfitting (subagging, Buehlmann and Yu 2002). The log-loss
    overfits far less than the score itself.

    The log-loss depends only on the probability of what is true, so that and a running sum are enough.
    """

    kind: Kind
    bags: int = 10
    steps: int = 25
    seed: int = 0

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Weighted:
        members, rows = votes.shape[:2]
        if not rows:
            return Weighted(np.full(members, 1 / members))
        has_truths = self.kind.probabilistic or self.kind.comparative
        terms, select = _true(self.kind, votes, labels) if has_truths else _errors(votes, labels)
        rng = np.random.default_rng(self.seed)
        weights = np.zeros(members)
        for _ in range(self.bags):
            drawn = np.sort(rng.choice(rows, size=math.ceil(rows / 2), replace=False))
            counts = select(np.take(terms, drawn, axis=1).reshape(members, -1), self.steps)
            weights += counts / counts.sum()
        return Weighted(weights / self.bags)


_Select = Callable[[np.ndarray, int], np.ndarray]


def _true(kind: Kind, votes: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, _Select]:
    """``(members, rows, units of a row)`` float32, each member's probability of what is true; 1 where it is unknown."""
    members, rows = votes.shape[:2]
    truths = kind.truths(labels)
    probabilities = np.empty((members, len(truths)), dtype=np.float32)
    units = np.arange(len(truths))
    for member, vote in enumerate(votes):
        probabilities[member] = kind.distributions(vote)[units, truths]
    probabilities[:, truths < 0] = 1
    np.maximum(probabilities, LEAST_PROBABILITY, out=probabilities)
    return probabilities.reshape(members, rows, -1), _by_log_loss


def _by_log_loss(probabilities: np.ndarray, steps: int) -> np.ndarray:
    """How often each member is added, ``(members,)``, up to the mean of the lowest log-loss.

    Most candidates are skipped without computing their logarithms. With the sum S of n added members and x = p / S for
    a candidate p, the concave ``log(1 + x)`` lies below its tangent at 1/n, and the tangents' sums over rows are one
    matrix-vector product. Candidates are tried in the order of these upper bounds, until a bound is below the best
    value so far.
    """
    members, rows = probabilities.shape
    # padded with rows of log-likelihood 0 to a multiple of _FACTORS
    probabilities = np.pad(probabilities, ((0, 0), (0, -rows % _FACTORS)), constant_values=1)
    rows = probabilities.shape[1]
    log_likelihoods = [_sum_of_logs(member) for member in probabilities]
    picks = [int(np.argmax(log_likelihoods))]
    best_by_step = [log_likelihoods[picks[0]]]
    total, candidate_sum = probabilities[picks[0]].copy(), np.empty(rows, dtype=np.float32)
    for n in range(1, steps):
        tangents = best_by_step[-1] + rows * math.log(n + 1) + (probabilities @ (1 / total) - rows / n) / (1 + 1 / n)
        bounds = tangents + 1e-5 * rows  # margin for float32 sums
        best, pick = -math.inf, members
        for candidate in np.argsort(-bounds, kind="stable"):
            if bounds[candidate] < best:
                break
            value = _sum_of_logs(np.add(total, probabilities[candidate], out=candidate_sum))
            if value > best or (value == best and candidate < pick):
                best, pick = value, int(candidate)
        picks.append(pick)
        best_by_step.append(best - rows * math.log(n + 1))
        total += probabilities[pick]
    return np.bincount(picks[: int(np.argmax(best_by_step)) + 1], minlength=members)


def _sum_of_logs(numbers: np.ndarray) -> float:
    """The sum of logarithms, taken of products of ``_FACTORS`` numbers to save logarithms."""
    return float(np.log(np.multiply.reduce(numbers.reshape(_FACTORS, -1), axis=0)).sum(dtype=np.float64))


def _errors(votes: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, _Select]:
    """``(members, rows, columns)`` float64, each member's errors; the error of the mean is their mean.

    Several columns count in units of each one's spread, so that a constant one does not count. An unknown label has no
    error.
    """
    errors = votes - labels.astype(np.float64)
    if labels.ndim > 1:
        labels = labels.astype(np.float64)
        known = ~np.isnan(labels)
        spread = np.array(
            [column[rows].std() if rows.any() else 0.0 for column, rows in zip(labels.T, known.T, strict=True)]
        )
        errors = np.nan_to_num(errors / np.where(spread > 0, spread, np.inf))
    return errors.reshape(*votes.shape[:2], -1), _by_squared_error


def _by_squared_error(errors: np.ndarray, steps: int) -> np.ndarray:
    """How often each member is added, ``(members,)``, up to the mean of the lowest squared error.

    The products of all pairs of errors are summed over rows once; each step is then a few additions.
    """
    products = errors @ errors.T
    own_squares = products.diagonal()
    picks: list[int] = []
    losses: list[float] = []
    total_square = 0.0  # squared norm of the sum of the picked members' errors
    total_products = np.zeros(len(errors))  # products of that sum with each member's errors
    for n in range(1, steps + 1):
        squares = total_square + 2 * total_products + own_squares
        pick = int(np.argmin(squares))
        total_square, total_products = float(squares[pick]), total_products + products[pick]
        picks.append(pick)
        losses.append(total_square / n**2)
    return np.bincount(picks[: int(np.argmin(losses)) + 1], minlength=len(errors))
