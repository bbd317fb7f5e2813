"""Ordered classes: each row has one of k labels that have an order, such as grades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np

from tutti.tasks.kinds.classes import Classes
from tutti.tasks.kinds.cut_points import cut, tune_cut_points
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
