"""Converts a search space to Optuna distributions, and samples a trial's parameters from them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from tutti.config.conditions import applies, drawing_order
from tutti.config.space import Categorical, Distribution, Int, LogUniform, SearchSpace


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """One Optuna distribution for each training key, in the order of the file.

    A range ends at the last value that its step reaches, as Optuna has it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns where that is below ``high``
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
        return IntDistribution(entry.low, entry.high, log=entry.log, step=entry.step)
    return FloatDistribution(entry.low, entry.high, step=entry.step)
