"""The weights of the tasks in the study's score, compared and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping


def proportional(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether both weigh the same tasks alike, such as 2 and 1 like 4 and 2, so that scores can be compared."""
    totals = sum(one.values()), sum(other.values())
    return one.keys() == other.keys() and all(
        math.isclose(weight * totals[1], other[name] * totals[0]) for name, weight in one.items()
    )


def listed(weights: Mapping[str, float]) -> str:
    """Weights by task in words, such as ``CoLA 2, STS-B 1``."""
    return ", ".join(f"{name} {weight:g}" for name, weight in weights.items())


def listed_if_unequal(weights: Mapping[str, float]) -> str:
    """The same; empty where all weights are equal, of which there is nothing to say."""
    return listed(weights) if len(set(weights.values())) > 1 else ""
