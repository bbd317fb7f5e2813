"""Warm start: trials of older studies, finished or stopped early, from which the sampler of a new study learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from tutti.config.address import without_password
from tutti.config.conditions import applies, drawing_order, same
from tutti.config.points import value_fault
from tutti.config.space import SearchSpace
from tutti.config.study import Objective
from tutti.errors import Fault, StudyError, counted
from tutti.records import Scalar
from tutti.search import database
from tutti.search.space import distributions
from tutti.search.trial_attributes import measured, resumption, scores_by_epoch, violates

_ORIGIN = "warm_start"  # attribute of an older trial: DATABASE:STUDY:NUMBER of where it ran


@dataclass(frozen=True)
class OlderStudy:
    """A study to learn from.

    Attributes:
        url: URL of its database.
        fixed: values that it set for all its trials, by key.
        owner: in a database that several people share, what distinguishes it from another study with its name.
    """

    name: str
    url: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    owner: str | None = None


def is_older(trial: FrozenTrial) -> bool:
    """Whether a trial was copied from an older study. Such trials come before all others."""
    return _ORIGIN in trial.user_attrs


def fitting_trials(
    older: OlderStudy, space: SearchSpace, *, fixed: Mapping[str, Any], objectives: Sequence[Objective] = ("score",)
) -> list[FrozenTrial]:
    """Copies of the older study's ended trials that this study could have sampled.

    A trial fits if

    * it has a value, sampled or fixed there, for every key that this study would sample, and this study allows it;
    * every other parameter that it sampled equals the value that this study fixes;
    * this study's ``objectives`` were measured for it.

    Trials stopped early keep that state and their reported scores. Trials that ran out of memory are left out: they
    have no score to learn from.

    Raises:
        StudyError: where no finished trial fits.
        StorageError: where the older study's database cannot be read.
    """
    kinds = distributions(space)
    ended = _ended(older)
    fitting = []
    for trial in ended:
        if resumption(trial).exchanges:  # its score was reached with other parameters than the sampled ones
            continue
        values, stopped = measured(trial), trial.state is TrialState.PRUNED
        if not ({"score"} if stopped else values.keys()) >= {*objectives}:
            continue
        point = _point_here({**older.fixed, **trial.params}, space, fixed)
        unused = trial.params.keys() - point.keys() if point is not None else set()
        if point is None or not all(key in fixed and same(fixed[key], trial.params[key]) for key in unused):
            continue
        params = {key: _inside(kinds[key], value) for key, value in point.items()}
        fitting.append(
            create_trial(
                state=trial.state,
                values=None if stopped else [values[objective] for objective in objectives],
                intermediate_values=scores_by_epoch(trial) if stopped else None,
                params=params,
                distributions={key: kinds[key] for key in point},
                user_attrs={_ORIGIN: f"{without_password(older.url)}:{older.name}:{trial.number}"},
            )
        )
    if not any(trial.state is TrialState.COMPLETE for trial in fitting):
        finished = sum(trial.state is TrialState.COMPLETE for trial in ended)
        rule = "have a finished trial whose parameters this study's search space could draw"
        remedy = "take it out of search.warm_start, or widen the search space"
        got = f"{counted(finished, 'finished trial')}, none of which fits" if finished else "no finished trial"
        raise StudyError(Fault(f"the older study {older.name!r}", rule, got, remedy))
    return fitting


def add_older_trials(
    study: optuna.Study,
    older: Sequence[OlderStudy],
    space: SearchSpace,
    *,
    fixed: Mapping[str, Any],
    objectives: Sequence[Objective],
    attributes: Mapping[str, Any],
) -> None:
    """Adds the fitting trials of older studies to one that has no trials of its own yet; skips those already added.

    Args:
        attributes: system attributes that make the study's sampler use them.
    """
    trials = [trial for each in older for trial in fitting_trials(each, space, fixed=fixed, objectives=objectives)]
    added = {trial.user_attrs[_ORIGIN] for trial in study.get_trials(deepcopy=False)}
    for trial in trials:
        origin = trial.user_attrs[_ORIGIN]
        if origin not in added:  # a study may also be named twice
            added.add(origin)
            trial.system_attrs = dict(attributes)
            study.add_trial(trial)


def _ended(older: OlderStudy) -> list[FrozenTrial]:
    with database.reading(older.url, study=older.name, owner=older.owner) as study:
        if study is None:
            return []
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return [trial for trial in trials if not is_older(trial) and _is_informative(trial)]


def _is_informative(trial: FrozenTrial) -> bool:
    """Whether an ended trial finished, or was stopped early with scores and without violating a constraint."""
    if trial.state is TrialState.COMPLETE:
        return True
    return bool(scores_by_epoch(trial)) and not violates(trial)


def _inside(kind: BaseDistribution, value: Scalar) -> Any:
    """A value that a distribution can have, as it stores it. Three steps of 0.1 are 0.30000000000000004, above 0.3."""
    if isinstance(kind, FloatDistribution):
        value = min(max(float(value), kind.low), kind.high)  # type: ignore[arg-type]
    return kind.to_external_repr(kind.to_internal_repr(value))


def _point_here(values: Mapping[str, Scalar], space: SearchSpace, fixed: Mapping[str, Any]) -> dict[str, Any] | None:
    """The part of a trial's values that this study would sample; None where it could not have sampled them."""
    drawn: dict[str, Any] = {}
    for key in drawing_order(space.root):
        if applies(space.root[key], {**fixed, **drawn}):
            if key not in values or value_fault(space.root[key], values[key]):
                return None
            drawn[key] = values[key]
    return drawn
