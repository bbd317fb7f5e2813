"""Greedy selection with replacement: members are added one by one, each time the one that helps most."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tutti.ensembling.calibrate import LEAST_PROBABILITY
from tutti.ensembling.methods.protocol import Weighted, check

_FACTORS = 4  # numbers from LEAST_PROBABILITY to the number of steps whose product float32 holds


@dataclass(frozen=True)
class Greedy:
    """Forward selection with replacement (Caruana et al. 2004), of the log-loss, or of values the squared error.

    A member may be added many times, and its weight is how often it was. Of ``steps`` additions those up to the best
    mean are kept. That is done ``bags`` times, each on half of the rows drawn without replacement, and the weights are
    averaged: the same rows then neither choose all members nor weigh them (Buehlmann and Yu 2002 on subagging). Not the
    score itself is selected on but the log-loss, which far fewer rows can fool.

    The mean of probabilities matters only at each row's true class, so ``(members, rows)`` float32 is all that is
    held, and a sum over the added members is kept from step to step.
    """

    bags: int = 10
    steps: int = 25
    seed: int = 0
    values: ClassVar[bool] = True

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Weighted:
        check(votes, labels, values=self.values)
        members, rows = votes.shape[:2]
        if not rows:
            return Weighted(np.full(members, 1 / members))
        known, select = _true_class(votes, labels) if votes.ndim == 3 else _errors(votes, labels)
        rng = np.random.default_rng(self.seed)
        weights = np.zeros(members)
        for _ in range(self.bags):
            drawn = np.sort(rng.choice(rows, size=math.ceil(rows / 2), replace=False))
            counts = select(np.take(known, drawn, axis=1), self.steps)
            weights += counts / counts.sum()
        return Weighted(weights / self.bags)


_Select = Callable[[np.ndarray, int], np.ndarray]


def _true_class(votes: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, _Select]:
    """``(members, rows)`` float32, the probability that each member gives to the true class."""
    known = np.empty(votes.shape[:2], dtype=np.float32)
    rows = np.arange(votes.shape[1])
    for place, vote in enumerate(votes):
        known[place] = vote[rows, labels]
    return np.maximum(known, LEAST_PROBABILITY, out=known), _by_log_loss


def _by_log_loss(known: np.ndarray, steps: int) -> np.ndarray:
    """How often each member is added, ``(members,)``, up to the mean of the lowest log-loss.

    The candidate that gains most is found without a logarithm of every candidate. With the sum S of n added members,
    and x = p / S for a candidate p, the concave ``log(1 + x)`` lies below its tangent at 1/n, and the sums over rows of
    all tangents are one product of matrix and vector. Candidates are tried in the order of these bounds until a bound
    is below what was found.
    """
    members, rows = known.shape
    known = np.pad(known, ((0, 0), (0, -rows % _FACTORS)), constant_values=1)  # rows that all get right tell nothing
    rows = known.shape[1]
    logs = [_sum_of_logs(one) for one in known]
    picks = [int(np.argmax(logs))]
    best = [logs[picks[0]]]
    total, trial = known[picks[0]].copy(), np.empty(rows, dtype=np.float32)
    for n in range(1, steps):
        tangents = best[-1] + rows * math.log(n + 1) + (known @ (1 / total) - rows / n) / (1 + 1 / n)
        bounds = tangents + 1e-5 * rows  # sums in float32
        value, pick = -math.inf, members
        for candidate in np.argsort(-bounds, kind="stable"):
            if bounds[candidate] < value:
                break
            found = _sum_of_logs(np.add(total, known[candidate], out=trial))
            if found > value or (found == value and candidate < pick):
                value, pick = found, int(candidate)
        picks.append(pick)
        best.append(value - rows * math.log(n + 1))
        total += known[pick]
    return np.bincount(picks[: int(np.argmax(best)) + 1], minlength=members)


def _sum_of_logs(numbers: np.ndarray) -> float:
    """Of so many numbers at a time the product is taken first: none is below the least probability, so none is lost."""
    return float(np.log(np.multiply.reduce(numbers.reshape(_FACTORS, -1), axis=0)).sum(dtype=np.float64))


def _errors(votes: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, _Select]:
    """``(members, rows)`` float64, what each member is wrong by: the mean's error is the mean of these."""
    return votes - labels.astype(np.float64), _by_squared_error


def _by_squared_error(known: np.ndarray, steps: int) -> np.ndarray:
    """How often each member is added, ``(members,)``, up to the mean of the lowest squared error.

    With the products of all pairs of errors, which are summed over rows once, a step costs a few additions.
    """
    products = known @ known.T
    single = products.diagonal()
    picks: list[int] = []
    losses: list[float] = []
    square, against = 0.0, np.zeros(len(known))  # of the errors' sum: its square, its product with each member's
    for n in range(1, steps + 1):
        squares = square + 2 * against + single
        pick = int(np.argmin(squares))
        square, against = float(squares[pick]), against + products[pick]
        picks.append(pick)
        losses.append(square / n**2)
    return np.bincount(picks[: int(np.argmin(losses)) + 1], minlength=len(known))
