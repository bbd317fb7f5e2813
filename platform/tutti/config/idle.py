"""Distributions of a search space that are sound, and yet no choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from tutti.config.conditions import same, written
from tutti.config.space import Categorical, Distribution, LogUniform
from tutti.errors import Fault

What = Callable[[str], str]


def distribution_faults(space: Mapping[str, Distribution], *, what: What) -> list[Fault]:
    """A fault for each step that leads nowhere and each choice that is there twice."""
    faults = []
    for key, distribution in space.items():
        if isinstance(distribution, Categorical):
            faults += _choice_faults(what(f"search_space.{key}.choices"), distribution.choices)
        elif not isinstance(distribution, LogUniform) and distribution.step is not None:
            low, high, step = (
                Decimal(str(given)) for given in (distribution.low, distribution.high, distribution.step)
            )
            if step > high - low:
                rule = f"be at most high - low, {high - low:g}, or every trial has the same value"
                remedy = "lower it, or widen the range"
                faults.append(Fault(what(f"search_space.{key}.step"), rule, f"{step:g}", remedy))
    return faults


def _choice_faults(place: str, choices: tuple[Any, ...]) -> list[Fault]:
    return [
        Fault(f"{place}.{index}", "be no choice that stands before it", written(choice), "take one of the two out")
        for index, choice in enumerate(choices)
        if any(same(choice, before) for before in choices[:index])
    ]
