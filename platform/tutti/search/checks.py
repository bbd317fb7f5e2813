"""Checks that a stored study can be resumed: its objectives, its owner and its search space."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import cast

import optuna
from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from tutti.config.study import Objective
from tutti.errors import Fault, StudyError
from tutti.search import database
from tutti.search.database import OWNER, has_other_owner
from tutti.search.grid import is_waiting
from tutti.search.objectives import DIRECTIONS
from tutti.search.trial_attributes import trial_key
from tutti.search.warm_start import is_older

OF_ANOTHER_FOLDER = "one of that name, of another folder"


def objectives_of(study: optuna.Study) -> list[Objective]:
    """The objectives of a stored study, in the order of its trials' values."""
    return cast(list[Objective], study.metric_names or ["score"])


def set_objectives(study: optuna.Study, objectives: Sequence[Objective]) -> None:
    """Names the objectives of a study, also for Optuna's plots and its dashboard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([*objectives])


def check_objectives(study: optuna.Study, objectives: Sequence[Objective]) -> None:
    """Raises StudyError where the stored study has other objectives or directions."""
    wanted = [DIRECTIONS[objective] for objective in objectives]
    directions = [direction.name.lower() for direction in study.directions]
    stored = objectives_of(study)
    if directions != wanted or stored != list(objectives):
        rule = f"have the objectives {_listed(objectives, wanted)}"
        got = _listed(stored if len(stored) == len(directions) else ["?"] * len(directions), directions)
        remedy = "name another study, or another database"
        raise StudyError(Fault(f"the kept study {study.study_name!r}", rule, got, remedy))


def _listed(objectives: Sequence[str], directions: Sequence[str]) -> str:
    return ", ".join(f"{name} ({direction})" for name, direction in zip(objectives, directions, strict=True))


def delete_aborted_start(storage: RDBStorage, name: str, *, owner: str | None, begun: bool) -> None:
    """Deletes a study of another owner, or one that has not begun, if it was interrupted before it asked for a trial.

    Such a study holds at most enqueued points and trials of older studies, which its next start adds anew.
    """
    try:
        study = optuna.load_study(storage=storage, study_name=name)
    except KeyError:
        return
    is_own = study.user_attrs.get(OWNER) == owner is not None  # one without an owner was not made by Tutti
    is_void = has_other_owner(study, owner) or (is_own and not begun)
    if is_void and all(is_older(trial) or is_waiting(trial) for trial in study.get_trials(deepcopy=False)):
        optuna.delete_study(storage=storage, study_name=name)


def delete(url: str, name: str, *, owner: str | None) -> None:
    """Deletes a study from the database of a server.

    Raises:
        StudyError: where it is not there, or another driver runs it.
        StorageError: where the database cannot be written.
    """
    with database.faults(url):
        storage = database.open_for_writing(url)
        with database.claimed(storage, name) as claim:
            optuna.delete_study(storage=storage, study_name=find(storage, name, owner=owner, begun=True).study_name)
        if claim is not None:
            claim.close()
        database.close(storage)


def set_owner(study: optuna.Study, owner: str) -> None:
    """Records the owner of a study that has none or has no trials.

    Raises:
        StudyError: where the study has trials and another owner.
    """
    if study.user_attrs.get(OWNER) == owner:
        return
    if study.get_trials(deepcopy=False):
        got = OF_ANOTHER_FOLDER
        remedy = "give `study:` another name, or remove that one with `optuna delete-study`"
        raise StudyError(Fault(f"the study {study.study_name!r}", "be new in its database", got, remedy))
    study.set_user_attr(OWNER, owner)


def check_space(name: str, trials: list[FrozenTrial], space: dict[str, BaseDistribution]) -> None:
    """Raises StudyError, with every fault, where a stored trial has another type of distribution for a parameter.

    Optuna refuses such a parameter too, but only when it is sampled, and one at a time.
    """
    faults: dict[str, Fault] = {}
    for number, trial in enumerate(trials):
        for key in trial.distributions.keys() & space.keys() - faults.keys():
            try:
                check_distribution_compatibility(trial.distributions[key], space[key])
            except ValueError:
                faults[key] = Fault(
                    f"search_space.{key}",
                    f"be of the kind that the kept trials of {name!r} have",
                    f"{space[key]} where trial {trial_key(number)} has {trial.distributions[key]}",
                    "give the changed study another name, or undo the change",
                )
    if faults:
        raise StudyError(*(faults[key] for key in sorted(faults)))


def find(storage: RDBStorage, name: str, *, owner: str | None, begun: bool) -> optuna.Study:
    """The study of this name; raises the StudyError of ``no_study`` where there is none, or it has another owner."""
    try:
        study = optuna.load_study(storage=storage, study_name=name)
    except KeyError:
        raise no_study(name, "a database without it", begun=begun) from None
    if has_other_owner(study, owner):
        raise no_study(name, OF_ANOTHER_FOLDER, begun=begun)
    return study


def no_study(name: str, got: str, *, begun: bool) -> StudyError:
    """The error for a study that is not in its database."""
    rule, remedy = "have been started", "run `tutti tune STUDY.yaml` first"
    if begun:
        rule = "be in the database in which it began"
        remedy = "check storage.database and $TUTTI_DATABASE, or restore that database"
    return StudyError(Fault(f"the study {name!r}", rule, got, remedy))
