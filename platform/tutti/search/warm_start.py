"""Trials of older studies, finished or stopped early, from which a new one's sampler learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
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
from tutti.search.trial_attributes import EXCHANGES, measured

_OF = "warm_start"  # the attribute of an older trial: its study's database and name, and its number there


@dataclass(frozen=True)
class OlderStudy:
    """A study to learn from.

    Attributes:
        url: its database.
        fixed: what it set for all its trials, by key.
    """

    name: str
    url: str
    fixed: Mapping[str, Any] = field(default_factory=dict)


def is_older(trial: FrozenTrial) -> bool:
    """Whether a trial is none of the study's own. Older trials come before all others."""
    return _OF in trial.user_attrs


def fitting_trials(
    older: OlderStudy, space: SearchSpace, *, fixed: Mapping[str, Any], objectives: Sequence[Objective] = ("score",)
) -> list[FrozenTrial]:
    """The older study's ended trials, as this study would have drawn them; those that it could not are left out.

    A trial fits where it has a value for every key that this study would draw, drawn or set for all trials there, each
    one that the key can have here, where all else that it drew is what this study sets for all trials, and where this
    study's ``objectives`` were measured of it. One that was stopped early is so here too, with what it scored by then;
    of one that ran out of memory nothing is known.

    Raises:
        StudyError: where no finished trial fits.
        StorageError: where the older study's database cannot be read.
    """
    kinds = distributions(space)
    ended = _ended(older)
    fitting = []
    for trial in ended:
        if trial.user_attrs.get(EXCHANGES):  # its score is not that of the point that was drawn for it
            continue
        values, stopped = measured(trial), trial.state is TrialState.PRUNED
        if not ({"score"} if stopped else values.keys()) >= {*objectives}:
            continue
        point = _drawn_here({**older.fixed, **trial.params}, space, fixed)
        left = trial.params.keys() - point.keys() if point is not None else set()
        if point is None or not all(key in fixed and same(fixed[key], trial.params[key]) for key in left):
            continue
        plain = {key: kinds[key].to_external_repr(kinds[key].to_internal_repr(value)) for key, value in point.items()}
        fitting.append(
            create_trial(
                state=trial.state,
                values=None if stopped else [values[objective] for objective in objectives],
                intermediate_values=trial.intermediate_values if stopped else None,
                params=plain,
                distributions={key: kinds[key] for key in point},
                user_attrs={_OF: f"{without_password(older.url)}:{older.name}:{trial.number}"},
            )
        )
    if not any(trial.state is TrialState.COMPLETE for trial in fitting):
        finished = sum(trial.state is TrialState.COMPLETE for trial in ended)
        rule = "have a finished trial whose parameters this study's search space could draw"
        remedy = "take it out of search.warm_start, or widen the search space"
        got = f"{counted(finished, 'finished trial')}, none of which fits" if finished else "no finished trial"
        raise StudyError(Fault(f"the older study {older.name!r}", rule, got, remedy))
    return fitting


def take_over(study: optuna.Study, trials: Sequence[FrozenTrial], *, attributes: Mapping[str, Any]) -> None:
    """Puts older trials into a study that has none of its own yet; those that are there already are left out.

    Args:
        attributes: system attributes that the study's sampler knows them by.
    """
    there = {trial.user_attrs[_OF] for trial in study.get_trials(deepcopy=False)}
    for trial in trials:
        if trial.user_attrs[_OF] not in there:
            trial.system_attrs = dict(attributes)
            study.add_trial(trial)


def _ended(older: OlderStudy) -> list[FrozenTrial]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with database.faults(older.url):
        storage = database.to_read(older.url)
        if storage is None:
            return []
        try:
            study = optuna.load_study(storage=storage, study_name=older.name)
            trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        except KeyError:
            return []
        finally:
            storage.remove_session()
            storage.engine.dispose()
    return [trial for trial in trials if not is_older(trial) and _told_of(trial)]


def _told_of(trial: FrozenTrial) -> bool:
    """Whether there is anything to learn from an ended trial."""
    if trial.state is TrialState.COMPLETE:
        return True
    return bool(trial.intermediate_values) and not any(above > 0 for above in trial.constraints.values())


def _drawn_here(values: Mapping[str, Scalar], space: SearchSpace, fixed: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of a trial's values, those that this study would have drawn; none where it could not have drawn them."""
    drawn: dict[str, Any] = {}
    for key in drawing_order(space.root):
        if applies(space.root[key], {**fixed, **drawn}):
            if key not in values or value_fault(space.root[key], values[key]):
                return None
            drawn[key] = values[key]
    return drawn
