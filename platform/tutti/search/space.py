"""From a search space to Optuna's distributions, and to what a trial draws from them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from tutti.config.conditions import applies, drawing_order
from tutti.config.space import Categorical, Distribution, Int, LogUniform, SearchSpace


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """One Optuna distribution for each training key, in the order of the file; none for an empty space."""
    return {key: _distribution(given) for key, given in space.root.items()}


def draw(trial: Trial, space: SearchSpace, *, fixed: Mapping[str, Any]) -> None:
    """Draws the trial's parameters, one after the other; a key whose condition does not hold is left out.

    Args:
        fixed: what the study sets for all trials, by key: a condition may ask for it.
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


def _distribution(given: Distribution) -> BaseDistribution:
    if isinstance(given, Categorical):
        return CategoricalDistribution(given.choices)
    if isinstance(given, LogUniform):
        return FloatDistribution(given.low, given.high, log=True)
    if isinstance(given, Int):
        return IntDistribution(
            given.low, given.high - (given.high - given.low) % given.step, log=given.log, step=given.step
        )
    if given.step is None:
        return FloatDistribution(given.low, given.high)
    return FloatDistribution(given.low, _last_step(given.low, given.high, given.step), step=given.step)


def _last_step(low: float, high: float, step: float) -> float:
    """The highest of ``low, low + step, ...`` that is not above ``high``.

    Reckoned in decimals, as Optuna does: in binary floats 0.3 is less than three steps of 0.1.
    """
    exact_low, exact_step = Decimal(str(low)), Decimal(str(step))
    return float(exact_low + (Decimal(str(high)) - exact_low) // exact_step * exact_step)
