"""Ordered classes: each row has one of k labels that have an order, such as grades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np

from tutti.tasks.kinds.classes import Classes
from tutti.tasks.kinds.offsets import calibrated
from tutti.tasks.kinds.probabilities import few_numbers
from tutti.tasks.kinds.protocol import Tuner

_SHOWN = 10  # names in a description
_POWERS = {"linear_kappa": 1, "quadratic_kappa": 2}


class Ordered(Classes):
    """As ``Classes``, with classes in their order: index 0 is the lowest.

    For a kappa that weighs distances, the parameters of decisions are cut points of the expected class instead.
    """

    name: ClassVar[str] = "ordered"
    needs_order: ClassVar[bool] = True

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        return f"{len(names)} classes in order: {', '.join(names[: most or _SHOWN])}" + ", ..." * (len(names) > _SHOWN)

    def decide(self, outputs: np.ndarray, decision: np.ndarray | None = None) -> np.ndarray:
        if decision is not None and len(decision) < outputs.shape[-1]:
            return cut(outputs, decision)
        return super().decide(outputs, decision)

    def tuner(self, metric: str) -> Tuner | None:
        power = _POWERS.get(metric)
        return super().tuner(metric) if power is None else partial(_tuned, power=power)

    def decision_by_name(self, names: Sequence[str], decision: np.ndarray) -> Mapping[str, float]:
        if len(decision) == len(names):
            return super().decision_by_name(names, decision)
        between = (f"{lower} | {higher}" for lower, higher in pairwise(names))
        return dict(zip(between, decision.tolist(), strict=True))

    def decision_text(self, names: Sequence[str], decision: np.ndarray | None) -> str:
        if decision is None or len(decision) == len(names):
            return super().decision_text(names, decision)
        return f"cut points of the mean index: {few_numbers(self.decision_by_name(names, decision))}"


def _tuned(probabilities: np.ndarray, labels: np.ndarray, *, power: int) -> np.ndarray | None:
    if not len(labels):
        return None
    return tune_cut_points(probabilities, calibrated(probabilities, labels), power=power)


_CANDIDATES = 60  # places between which a cut point lies with about as many rows
_PASSES = 3


def cut(probabilities: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The class of each row, int64: how many ``points`` ``(classes - 1,)`` its expected class is above."""
    return np.searchsorted(points, expected(probabilities), side="left")


def expected(probabilities: np.ndarray) -> np.ndarray:
    """The mean index of the classes by their probabilities, ``(..., rows, classes)`` to ``(..., rows)`` float64."""
    return probabilities @ np.arange(probabilities.shape[-1], dtype=np.float64)


def tune_cut_points(probabilities: np.ndarray, shares: np.ndarray, *, power: int) -> np.ndarray:
    """Ascending cut points ``(classes - 1,)`` with the highest weighted kappa where ``shares`` are the rows' labels.

    Found by passes of coordinate ascent, from the points halfway between classes.

    Args:
        probabilities: ``(rows, classes)``.
        shares: ``(rows, classes)``, which sum to 1: calibrated probabilities, of which the score is then expected.
        power: of the distance of two classes by which a confusion weighs; 1 for linear, 2 for quadratic kappa.
    """
    values, classes = expected(probabilities), probabilities.shape[1]
    index = np.arange(classes)
    distances = np.abs(index[:, None] - index).astype(np.float64) ** power
    costs = shares @ distances  # (rows, classes): what each decision of a row costs
    by_chance = shares.mean(axis=0) @ distances  # (classes,): what it costs where it says nothing of the row
    order = np.argsort(values, kind="stable")
    totals = np.concatenate([np.zeros((1, classes)), costs[order].cumsum(axis=0)])  # of the lowest rows
    ascending = values[order]
    places = np.unique(np.linspace(0, len(order), _CANDIDATES + 1).round().astype(np.int64))

    def kappa(bounds: np.ndarray) -> float:
        """Of the decisions by places among the ascending rows, ``(classes + 1,)``."""
        cost = (totals[bounds[1:], index] - totals[bounds[:-1], index]).sum()
        chance = np.diff(bounds) @ by_chance
        return 1 - cost / chance if chance else 0.0

    bounds = np.concatenate([[0], np.searchsorted(ascending, index[:-1] + 0.5), [len(order)]])
    best = kappa(bounds)
    for _ in range(_PASSES):
        before = best
        for point in range(1, classes):
            for place in places[(places >= bounds[point - 1]) & (places <= bounds[point + 1])]:
                tried = bounds.copy()
                tried[point] = place
                if (score := kappa(tried)) > best + 1e-12:
                    best, bounds = score, tried
        if best == before:
            break
    edges = np.concatenate([[ascending[0] - 1], ascending, [ascending[-1] + 1]])
    return (edges[bounds[1:-1]] + edges[bounds[1:-1] + 1]) / 2
