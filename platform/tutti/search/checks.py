"""What a kept study must be to go on with it."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from tutti.config.study import Objective
from tutti.errors import Fault, StudyError
from tutti.search.grid import waits
from tutti.search.objectives import DIRECTIONS
from tutti.search.trial_attributes import trial_key
from tutti.search.warm_start import is_older

_OWNER = "owner"  # the attribute of a study in a database that many share
OBJECTIVES = "objectives"  # the attribute of a study whose objective is not the score alone


def objectives_of(study: optuna.Study) -> list[Objective]:
    """What its trials are told with."""
    kept: list[Objective] = study.user_attrs.get(OBJECTIVES, ["score"])
    return kept


def check_objectives(study: optuna.Study, objectives: Sequence[Objective]) -> None:
    wanted = [DIRECTIONS[objective] for objective in objectives]
    directions = [direction.name.lower() for direction in study.directions]
    kept = objectives_of(study)
    if directions != wanted or kept != list(objectives):
        rule = f"have the objectives {_listed(objectives, wanted)}"
        got = _listed(kept if len(kept) == len(directions) else ["?"] * len(directions), directions)
        remedy = "name another study, or another database"
        raise StudyError(Fault(f"the kept study {study.study_name!r}", rule, got, remedy))


def _listed(objectives: Sequence[str], directions: Sequence[str]) -> str:
    return ", ".join(f"{name} ({direction})" for name, direction in zip(objectives, directions, strict=True))


def forget_dead_start(storage: RDBStorage, name: str, owner: str) -> None:
    """Removes a study that another owner's first start was cut off in, before it asked for a trial.

    What is there then are at most points that wait and trials of older studies: the next owner has its own.
    """
    try:
        study = optuna.load_study(storage=storage, study_name=name)
    except KeyError:
        return
    trials = study.get_trials(deepcopy=False)
    of_another = study.user_attrs.get(_OWNER) not in (None, owner)
    if of_another and all(is_older(trial) or waits(trial) for trial in trials):
        optuna.delete_study(storage=storage, study_name=name)


def own(study: optuna.Study, owner: str) -> None:
    """Makes the study the owner's, where it is nobody's that has trials."""
    kept = study.user_attrs.get(_OWNER)
    if kept == owner:
        return
    if study.get_trials(deepcopy=False):
        got = "one of that name, of another folder"
        remedy = "give `study:` another name, or remove that one with `optuna delete-study`"
        raise StudyError(Fault(f"the study {study.study_name!r}", "be new in its database", got, remedy))
    study.set_user_attr(_OWNER, owner)


def check_space(name: str, trials: list[FrozenTrial], space: dict[str, BaseDistribution]) -> None:
    """Optuna refuses a parameter whose kind changed, but only when it is asked for: said here, all at once."""
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


def no_study(name: str, got: str) -> StudyError:
    return StudyError(Fault(f"the study {name!r}", "have been started", got, "run `tutti tune STUDY.yaml` first"))
