"""How much each parameter matters, by Optuna."""

from __future__ import annotations

import warnings

import optuna
from optuna.trial import TrialState

from tutti.search import database
from tutti.search.warm_start import is_older

_MIN_TRIALS = 2  # finished trials, below which nothing varies


def importances(url: str, *, name: str, owner: str | None = None) -> dict[str, float]:
    """The share of the first objective's variance that each parameter explains (fANOVA, Hutter et al. 2014).

    The most important comes first. Empty with too few trials, or such that do not differ. Trials of older studies (warm
    start) do not count.

    Args:
        url: the study's database, opened read-only.

    Raises:
        StorageError: where the database cannot be read.
    """
    with database.reading(url, study=name, owner=owner) as stored:
        if stored is None:
            return {}
        study = optuna.create_study(directions=stored.directions)
        study.add_trials([trial for trial in stored.get_trials(states=(TrialState.COMPLETE,)) if not is_older(trial)])
    if len(study.trials) < _MIN_TRIALS or len({trial.values[0] for trial in study.trials}) == 1:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fanova = optuna.importance.FanovaImportanceEvaluator(seed=0)  # another one is Optuna's default
            found = optuna.importance.get_param_importances(
                study, evaluator=fanova, target=lambda trial: trial.values[0]
            )
    except (ValueError, RuntimeError):  # nothing varies, or no parameter is in all trials
        return {}
    return {parameter: share for parameter, share in found.items() if share == share}  # not a number without variance
