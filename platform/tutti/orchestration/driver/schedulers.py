"""The Ray Tune scheduler of a study, which stops unpromising trials early."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule, TrialScheduler

from tutti.config.possible import possible_values
from tutti.config.stages import STAGES, staged
from tutti.config.study import StudyConfig
from tutti.records import TrialRecord, TrialState

TIME, SCORE = "epoch", "score"  # keys of a report: the number of evaluations, or folds, so far, and the score
BRACKETS = 5
"""Maximum number of Hyperband's brackets, as in the paper. Each bracket first stops trials one rung later."""


def make_scheduler(study: StudyConfig, past: Sequence[TrialRecord] = ()) -> TrialScheduler | None:
    """The scheduler of a study; none if all trials run to their end.

    No scheduler pauses trials: workers would have to keep a paused trial, or restart it.

    Args:
        past: trials of earlier runs of the study. New trials are also compared with those that have ended. Unfinished
            ones that are added again keep their earlier scores.
    """
    search, per_epoch = study.search, 1 if study.split.folds else study.evals_per_epoch
    grace = max(math.ceil(search.grace_epochs * per_epoch - 1e-9), 1)  # 0.28 of 25 is 7.000000000000001
    longest = max(longest_training(study), grace)
    settings: dict[str, Any] = {
        "past": {record.key: record.scores_by_epoch for record in past},
        "time_attr": TIME,
        "metric": SCORE,
        "mode": "max",
        "grace_period": grace,
    }
    # max_t is larger than any trial's time: a scheduler stops a trial there, before its predictions are in the bank.
    halving = settings | {"reduction_factor": search.reduction_factor, "max_t": longest + 1}
    scheduler: TrialScheduler
    match search.scheduler:
        case "none" | "pbt":  # the broker carries out a population's exchanges, since it knows which trials wait
            return None
        case "asha":
            scheduler = Asha(**halving)
        case "hyperband":
            rungs = math.ceil(math.log(longest / grace, search.reduction_factor) - 1e-9)  # before the end of training
            scheduler = Hyperband(brackets=min(rungs + 1, BRACKETS), seed=search.seed, **halving)
        case "median":
            scheduler = Median(**settings, min_time_slice=math.inf)  # never pauses a trial
    for record in past:
        if record.state is not TrialState.RUNNING:  # failed ones too: their scores count in the run they fail in
            scheduler.on_trial_add(None, _EndedTrial(record.key, {"key": record.key}))
    return scheduler


class Asha(ASHAScheduler):
    """Asynchronous successive halving in which a trial that goes on in a resumed study keeps the rungs it has passed.

    Ray would judge it again at each of them, and record its later scores there, for others to be compared with.

    Args:
        past: scores of the study's trials, by key and epoch. They count once: Tune adds a trial again to retry it, when
            what it has reported in this run is known, or its past is void because it started over.
    """

    def __init__(self, *, past: Mapping[str, Mapping[int, float]], **settings: Any) -> None:
        super().__init__(**settings)
        self._past = dict(past)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        key = trial.config["key"]
        self._trial_info[trial.trial_id] = self._bracket(key)
        for result in _results(self._past.pop(key, {})):
            super().on_trial_result(tune_controller, trial, result)  # its decision was carried out in the earlier run

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> Any:
        if _starts_over(result):
            for _, scores in self._trial_info[trial.trial_id]._rungs:
                scores.pop(trial.trial_id, None)
        decision = super().on_trial_result(tune_controller, trial, result)
        return TrialScheduler.STOP if _is_stopping(trial, result) else decision

    def _bracket(self, key: str) -> Any:
        return self._brackets[0]


class Hyperband(Asha):
    """Several brackets of asynchronous successive halving, each of which first stops trials at a later rung.

    Hyperband (Li et al. 2018, JMLR 18) in the asynchronous form of its authors (Li et al. 2020, arXiv 1810.05934). It
    hedges against early scores that predict little. With one bracket more than there are rungs before the end of
    training, the last one stops no trial. Ray's own Hyperband pauses trials.

    A trial's bracket is drawn from its key and the seed, so it stays the same in a resumed study; Ray draws it from
    NumPy's global random state. As in the paper, brackets get about the same number of epochs each.
    """

    def __init__(self, *, brackets: int, seed: int, reduction_factor: int, **settings: Any) -> None:
        super().__init__(brackets=brackets, reduction_factor=reduction_factor, **settings)
        self._seed = seed
        halvings = range(brackets - 1, -1, -1)
        self._shares = [math.ceil(brackets * reduction_factor**count / (count + 1)) for count in halvings]

    def _bracket(self, key: str) -> Any:
        return random.Random(f"{self._seed} {key}").choices(self._brackets, self._shares)[0]


class Median(MedianStoppingRule):
    """Stops a trial whose best score is below the median of the others' mean scores from the grace to its epoch.

    The rule of Golovin et al. 2017 (Google Vizier). Only epoch and score of a report are kept, and each epoch once. A
    last report without a score, such as that of a failed trial, is ignored: Ray's class would raise a KeyError later.

    Args:
        past: scores of the study's trials, by key and epoch. A trial that is added again starts with its own, once, as
            for ``Asha``.
    """

    def __init__(self, *, past: Mapping[str, Mapping[int, float]], **settings: Any) -> None:
        super().__init__(**settings)
        self._past = dict(past)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        if results := _results(self._past.pop(trial.config["key"], {})):
            self._results[trial] = results

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> Any:
        if _is_stopping(trial, result):
            return TrialScheduler.STOP
        if _starts_over(result):
            self._results.pop(trial, None)
        numbers = _numbers(result)
        is_repeated = any(earlier[TIME] == numbers.get(TIME) for earlier in self._results.get(trial, ()))
        if is_repeated:  # by other workers, after the first ones were lost
            return TrialScheduler.CONTINUE
        return super().on_trial_result(tune_controller, trial, numbers)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        numbers = _numbers(result)
        earlier_results = self._results.get(trial, ())
        if len(numbers) == 2 and all(earlier[TIME] < numbers[TIME] for earlier in earlier_results):
            super().on_trial_complete(tune_controller, trial, numbers)


def _is_stopping(trial: Any, result: Mapping[str, Any]) -> bool:
    """Whether an earlier run's scheduler stopped the trial, but its driver died before it stored the trial's end.

    Judging the trial anew would compare it with scores that came later. Folds before the last one are told again first.
    """
    stopping = trial.config["resumption"].stopping
    return bool(stopping) and SCORE in result and ("fold" not in result or result[TIME] >= stopping)


def _starts_over(result: Mapping[str, Any]) -> bool:
    """Whether the trial trains anew, with half its batch or after its files were damaged: its earlier scores are void.

    Folds told again have the same scores.
    """
    is_first = result.get(TIME) == 1 and not result.get("repeated", False) and "fold" not in result
    return is_first or "halved" in result


def _numbers(result: Mapping[str, Any]) -> dict[str, float]:
    return {name: result[name] for name in (TIME, SCORE) if name in result}


def _results(scores: Mapping[int, float]) -> list[dict[str, float]]:
    return [{TIME: epoch, SCORE: score} for epoch, score in scores.items()]


@dataclass(frozen=True, eq=False)
class _EndedTrial:
    """An ended trial of an earlier run, with the attributes that schedulers read."""

    trial_id: str
    config: Mapping[str, str]


def longest_training(study: StudyConfig) -> int:
    """The largest number of reports that any trial of the study may make: folds, or evaluations of its epochs.

    The number of epochs is rounded up in each stage. With ``max_steps``, which may mean any number of epochs, it is
    10**6.
    """
    if study.split.folds:
        return study.split.folds
    epochs = 0
    for index, keys in enumerate(staged(study.training)):
        stage = f"{STAGES}.{index}."
        is_varied = any(f"{prefix}max_steps" in study.search_space.root for prefix in (stage, ""))
        if is_varied or int(keys.get("max_steps", -1)) > 0:
            return 10**6
        values = [value for _, value in possible_values(study, "num_train_epochs", stage)]
        epochs += math.ceil(max(3.0 if value is None else float(value) for value in values))
    return epochs * study.evals_per_epoch
