"""Which of Ray Tune's schedulers says what trials end early, and how it is set."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule, TrialScheduler

from tutti.config.space import Categorical, Distribution
from tutti.config.stages import STAGES, staged
from tutti.config.study import StudyConfig
from tutti.records import TrialRecord, TrialState

TIME, SCORE = "epoch", "score"  # of a report: how many evaluations, or folds, it is by then, and what it scored
BRACKETS = 5
"""Of Hyperband, at most, as its authors have them; each further one makes its first stop so much later."""


def make_scheduler(study: StudyConfig, past: Sequence[TrialRecord] = ()) -> TrialScheduler | None:
    """The scheduler of a study; none where all trials run to their end.

    None of them pauses a trial: its workers would have to keep it, or begin it again.

    Args:
        past: trials of the study; with those that have ended, the ones to come are compared too, and those that are
            added again go on from what they had scored.
    """
    scores = {record.key: record.scores_by_epoch for record in past}
    search, per_epoch = study.search, 1 if study.split.folds else study.evals_per_epoch
    grace = max(math.ceil(search.grace_epochs * per_epoch - 1e-9), 1)  # 0.28 of 25 is 7.000000000000001
    longest = max(longest_training(study), grace)
    halving: dict[str, Any] = {
        "time_attr": TIME,
        "metric": SCORE,
        "mode": "max",
        "grace_period": grace,
        "reduction_factor": search.reduction_factor,
        # One more than any trial reaches: at max_t a trial would be ended before its predictions lie in the bank.
        "max_t": longest + 1,
    }
    scheduler: TrialScheduler
    match search.scheduler:
        case "none" | "pbt":  # a population meets at the broker, which alone knows who waits
            return None
        case "asha":
            scheduler = Asha(past=scores, **halving)
        case "hyperband":
            rungs = int(math.log(longest / grace, search.reduction_factor) + 1e-9) + 1
            scheduler = Hyperband(brackets=min(rungs, BRACKETS), seed=search.seed, past=scores, **halving)
        case "median":
            scheduler = Median(
                past=scores,
                time_attr=TIME,
                metric=SCORE,
                mode="max",
                grace_period=grace,
                min_time_slice=math.inf,  # it never pauses
            )
    for record in past:
        if record.state in (TrialState.FINISHED, TrialState.STOPPED):
            scheduler.on_trial_add(None, _Past(record.key, {"key": record.key}))
    return scheduler


class Asha(ASHAScheduler):
    """Asynchronous successive halving in which a trial that is added again has passed the rungs that it had passed.

    Ray would judge it anew at each of them, and file its late scores there, for others to be compared with.

    Args:
        past: what trials of the study scored, by key and epoch.
    """

    def __init__(self, *, past: Mapping[str, Mapping[int, float]], **settings: Any) -> None:
        super().__init__(**settings)
        self._past = past

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        key = trial.config["key"]
        self._trial_info[trial.trial_id] = self._bracket(key)
        for told in _told(self._past.get(key, {})):
            self.on_trial_result(tune_controller, trial, told)  # what it says was decided then

    def _bracket(self, key: str) -> Any:
        return self._brackets[0]


class Hyperband(Asha):
    """Several brackets of asynchronous successive halving, each of which makes its first stop at a later rung.

    Hyperband (Li et al. 2018, JMLR 18) as its authors run it asynchronously (Li et al. 2020, arXiv 1810.05934): it
    hedges against scores that say little at the beginning. The last bracket stops none where trials may be so long as
    the others allow. Of Ray's own scheduler of that name trials would have to be paused.

    A trial's bracket follows from its key and the seed, so that it is the same when the trial is run again; Ray draws
    it from NumPy's global random state. Brackets get about the same number of epochs, as in the paper.
    """

    def __init__(self, *, brackets: int, seed: int, reduction_factor: int, **settings: Any) -> None:
        super().__init__(brackets=brackets, reduction_factor=reduction_factor, **settings)
        self._seed = seed
        halvings = range(brackets - 1, -1, -1)
        self._shares = [math.ceil(brackets * reduction_factor**count / (count + 1)) for count in halvings]

    def _bracket(self, key: str) -> Any:
        return random.Random(f"{self._seed} {key}").choices(self._brackets, self._shares)[0]


class Median(MedianStoppingRule):
    """Stops a trial whose best score is below the median of the others' mean scores up to its epoch.

    The rule of Golovin et al. 2017 (Google Vizier). Of each report it keeps two numbers, and an epoch once. A last
    report without a score, as of a trial that failed, would be its end.

    Args:
        past: what trials of the study scored, by key and epoch: one that is added again has scored it.
    """

    def __init__(self, *, past: Mapping[str, Mapping[int, float]], **settings: Any) -> None:
        super().__init__(**settings)
        self._past = past

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        if told := _told(self._past.get(trial.config["key"], {})):
            self._results[trial] = told

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> Any:
        told = _numbers(result)
        if any(each[TIME] == told.get(TIME) for each in self._results.get(trial, ())):  # told again by other workers
            return TrialScheduler.CONTINUE
        return super().on_trial_result(tune_controller, trial, told)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        told = _numbers(result)
        known = self._results.get(trial, ())
        if len(told) == 2 and all(each[TIME] < told[TIME] for each in known):
            super().on_trial_complete(tune_controller, trial, told)


def _numbers(result: Mapping[str, Any]) -> dict[str, float]:
    return {name: result[name] for name in (TIME, SCORE) if name in result}


def _told(scores: Mapping[int, float]) -> list[dict[str, float]]:
    return [{TIME: epoch, SCORE: score} for epoch, score in scores.items()]


@dataclass(frozen=True, eq=False)
class _Past:
    """What a scheduler asks of a trial that has ended."""

    trial_id: str
    config: Mapping[str, str]


def longest_training(study: StudyConfig) -> int:
    """The most reports that any trial of the study may make: of the epochs it may train, rounded up, or the folds.

    ``max_steps`` may stand for any number.
    """
    if study.split.folds:
        return study.split.folds
    varied, epochs = study.search_space.root, 0
    for index, keys in enumerate(staged(study.training)):
        own = [f"{STAGES}.{index}.", ""]  # a key of the search space is laid over the study's, one of a stage over both
        if any(f"{prefix}max_steps" in varied for prefix in own) or int(keys.get("max_steps", -1)) > 0:
            return 10**6
        stage: Mapping[str, object] = (study.training.get(STAGES) or ({},))[index]
        found = [varied.get(f"{prefix}num_train_epochs") for prefix in own]
        most = []  # of what may hold: the stage's own, drawn or set, then what all stages have
        for space in found[:1] if "num_train_epochs" in stage else found:
            if space:
                most.append(_highest(space))
            if space and not space.when:
                break
        else:
            most.append(float(keys.get("num_train_epochs", 3)))
        epochs += math.ceil(max(most))
    return epochs * study.evals_per_epoch


def _highest(distribution: Distribution) -> float:
    if isinstance(distribution, Categorical):
        return max(float(choice) for choice in distribution.choices if choice is not None)
    return float(distribution.high)
