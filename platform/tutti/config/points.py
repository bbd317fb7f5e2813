"""Points of a search space: the values that a key can have, and the grid of all points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from tutti.config.conditions import Values, applies, drawing_order, same, written
from tutti.config.space import Categorical, Distribution, Int, Uniform
from tutti.errors import nearest

_CLOSE = 1e-8  # tolerance as a share of a step, like Optuna's: three steps of 0.1 are 0.30000000000000004


def value_fault(distribution: Distribution, value: Any) -> tuple[str, str] | None:
    """The rule that a value violates, and its remedy; None where the key can have the value."""
    if isinstance(distribution, Categorical):
        if any(same(value, choice) for choice in distribution.choices):
            return None
        choices = [written(choice) for choice in distribution.choices]
        return f"be one of {', '.join(choices)}", nearest(written(value), choices, otherwise="choose one of them")
    kind = int if isinstance(distribution, Int) else int | float
    if isinstance(value, bool) or not isinstance(value, kind):
        return ("be a whole number" if kind is int else "be a number"), "correct the value"
    low, high, step = distribution.low, distribution.high, distribution.step
    slack = _CLOSE * (step or 0)
    if not low - slack <= value <= high + slack:
        return f"be from {low} to {high}, as the search space has it", "choose a value inside, or widen the range"
    if step is not None and abs((value - low) / step - round((value - low) / step)) > _CLOSE:
        return f"be {low} or whole steps of {step} above it", "choose such a value, or take the step out"
    return None


def is_finite(distribution: Distribution) -> bool:
    """Whether a key has finitely many values."""
    return isinstance(distribution, Categorical) or distribution.step is not None


def grid(space: Mapping[str, Distribution], fixed: Values) -> Iterator[dict[str, Any]]:
    """Every point of a space of finite distributions, each once, with only the keys that a trial there samples."""
    yield from _grid_from(drawing_order(space), {}, space, fixed)


def _grid_from(
    keys: list[str], drawn: dict[str, Any], space: Mapping[str, Distribution], fixed: Values
) -> Iterator[dict[str, Any]]:
    if not keys:
        yield drawn
        return
    key, *others = keys
    if not applies(space[key], {**fixed, **drawn}):
        yield from _grid_from(others, drawn, space, fixed)
        return
    for value in _finite_values(space[key]):
        yield from _grid_from(others, {**drawn, key: value}, space, fixed)


def _finite_values(distribution: Distribution) -> Iterator[Any]:
    if isinstance(distribution, Categorical):
        yield from distribution.choices
    elif isinstance(distribution, Int):
        yield from range(distribution.low, distribution.high + 1, distribution.step)
    elif isinstance(distribution, Uniform) and distribution.step is not None:
        low, high, step = (Decimal(str(number)) for number in (distribution.low, distribution.high, distribution.step))
        yield from (float(low + index * step) for index in range(int((high - low) // step) + 1))
