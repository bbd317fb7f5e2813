"""Converts a search space to Optuna distributions, and samples a trial's parameters from them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from tutti.config.conditions import applies, drawing_order
from tutti.config.space import Categorical, Distribution, Int, LogUniform, SearchSpace


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """One Optuna distribution for each training key, in the order of the file."""
    return {key: _distribution(entry) for key, entry in space.root.items()}


def draw(trial: Trial, space: SearchSpace, *, fixed: Mapping[str, Any]) -> None:
    """Samples the trial's parameters; keys whose condition does not hold are left out.

    Args:
        fixed: values that the study sets for all trials, by key; conditions may refer to them.
    """
    kinds = distributions(space)
    for key in drawing_order(space.root):
        if applies(space.root[key], {**fixed, **trial.params}):
            _suggest(trial, key, kinds[key])


def _suggest(trial: Trial, key: str, kind: BaseDistribution) -> None:
    if isinstance(kind, CategoricalDistribution):
        trial.suggest_categorical(key, kind.choices)
    elif isinstance(kind, IntDistribution):
        trial.suggest_int(key, kind.low, kind.high, step=kind.step, log=kind.log)
    elif isinstance(kind, FloatDistribution):
        trial.suggest_float(key, kind.low, kind.high, step=kind.step, log=kind.log)


def _distribution(entry: Distribution) -> BaseDistribution:
    if isinstance(entry, Categorical):
        return CategoricalDistribution(entry.choices)
    if isinstance(entry, LogUniform):
        return FloatDistribution(entry.low, entry.high, log=True)
    if isinstance(entry, Int):
        return IntDistribution(
            entry.low, entry.high - (entry.high - entry.low) % entry.step, log=entry.log, step=entry.step
        )
    if entry.step is None:
        return FloatDistribution(entry.low, entry.high)
    return FloatDistribution(entry.low, _last_step(entry.low, entry.high, entry.step), step=entry.step)


def _last_step(low: float, high: float, step: float) -> float:
    """The highest of ``low, low + step, ...`` that is not above ``high``.

    Computed in decimals, as Optuna does: in binary floats 0.3 is less than three steps of 0.1.
    """
    exact_low, exact_step = Decimal(str(low)), Decimal(str(step))
    return float(exact_low + (Decimal(str(high)) - exact_low) // exact_step * exact_step)
