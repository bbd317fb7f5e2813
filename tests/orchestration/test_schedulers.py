"""What each scheduler decides on reports of trials, without Ray."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from broker_calls import trial

from tutti.config.study import StudyConfig
from tutti.orchestration.driver.schedulers import longest_training, make_scheduler
from tutti.records import TrialRecord, TrialState

STOP, CONTINUE = "STOP", "CONTINUE"


def study(**changes: Any) -> StudyConfig:
    task = {"layout": "competition", "train": "/x"}
    return StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"a": task}, **changes})


def searching(epochs: int = 9, **search: Any) -> StudyConfig:
    return study(training={"num_train_epochs": epochs}, search=search)


@dataclass(eq=False)
class Trials:
    """Trials as a scheduler sees them, and Tune's part of the talk."""

    scheduler: Any
    added: dict[int, Any] = field(default_factory=dict)

    def add(self, number: int, **resumption: Any) -> None:
        @dataclass(eq=False)
        class Trial:
            trial_id: str
            config: dict[str, Any]

        self.added[number] = Trial(f"ray{number}", trial(number, **resumption))
        self.scheduler.on_trial_add(None, self.added[number])

    def report(self, number: int, epoch: int, score: float, **more: Any) -> str:
        """What is decided on the report; a trial that is stopped is complete, as Tune has it."""
        if number not in self.added:
            self.add(number)
        result = {"epoch": epoch, "score": score, "host": "here", **more}
        decision = self.scheduler.on_trial_result(None, self.added[number], result)
        if decision == STOP:
            self.scheduler.on_trial_complete(None, self.added[number], result)
        return decision

    def end(self, number: int, **last: Any) -> None:
        """What Tune tells of a trial whose last report says so: no decision is asked for."""
        self.scheduler.on_trial_complete(None, self.added[number], {"final": True, **last})

    def retry(self, number: int) -> None:
        """Tells that Tune retries a trial whose actor was lost."""
        self.scheduler.on_trial_error(None, self.added[number])
        self.scheduler.on_trial_add(None, self.added[number])

    def start_over(self, number: int) -> None:
        """Tells that a trial trains anew with half its batch."""
        assert self.scheduler.on_trial_result(None, self.added[number], {"halved": "out of memory"}) == CONTINUE


def made(**search: Any) -> Trials:
    return Trials(make_scheduler(searching(**search)))


def test_with_none_nobody_decides():
    assert make_scheduler(searching(scheduler="none")) is None


def test_asha_stops_at_each_rung_what_is_not_among_its_best_and_nothing_before_the_grace_is_over():
    trials = made(scheduler="asha", grace_epochs=2, reduction_factor=2)
    assert [trials.report(number, 1, 0.9 - number / 10) for number in range(4)] == [CONTINUE] * 4
    assert [trials.report(number, 2, 0.9 - number / 10) for number in range(4)] == [CONTINUE, STOP, STOP, STOP]
    assert trials.report(4, 2, 0.85) == CONTINUE


def test_a_grace_of_half_an_epoch_ends_at_the_first_evaluation_that_is_as_far():
    config = study(training={"evals_per_epoch": 4}, search={"scheduler": "asha", "grace_epochs": 0.5})
    trials = Trials(make_scheduler(config))
    assert [trials.report(number, 1, 0.9 - number / 10) for number in range(3)] == [CONTINUE] * 3
    assert [trials.report(number, 2, 0.9 - number / 10) for number in range(3)] == [CONTINUE, STOP, STOP]
    assert [trials.report(0, evaluation, 0.9) for evaluation in range(3, 13)] == [CONTINUE] * 10  # of three epochs


def test_a_grace_is_not_rounded_up_for_what_a_product_of_floats_has_too_much():
    config = study(training={"evals_per_epoch": 25}, search={"scheduler": "asha", "grace_epochs": 0.28})
    trials = Trials(make_scheduler(config))
    assert [trials.report(number, 7, 0.9 - number / 10) for number in range(3)] == [CONTINUE, STOP, STOP]


def test_with_folds_the_grace_counts_folds_however_often_their_epochs_are_evaluated():
    config = study(training={"evals_per_epoch": 4}, split={"folds": 4}, search={"scheduler": "asha", "grace_epochs": 2})
    trials = Trials(make_scheduler(config))
    assert [trials.report(number, 1, 0.9 - number / 10) for number in range(3)] == [CONTINUE] * 3
    assert [trials.report(number, 2, 0.9 - number / 10) for number in range(3)] == [CONTINUE, STOP, STOP]


def test_asha_forgets_the_scores_of_a_trial_that_starts_over():
    trials = made(scheduler="asha", grace_epochs=2, reduction_factor=2)
    assert [trials.report(0, epoch, 0.9) for epoch in (1, 2)] == [CONTINUE] * 2
    trials.start_over(0)
    assert [trials.report(0, epoch, 0.1) for epoch in (1, 2)] == [CONTINUE] * 2
    assert [trials.report(1, epoch, 0.5) for epoch in (1, 2)] == [CONTINUE] * 2


def test_a_first_epoch_that_is_not_a_repetition_is_that_of_a_trial_that_starts_over():
    trials = made(scheduler="asha", reduction_factor=2)
    assert trials.report(0, 1, 0.9) == CONTINUE
    assert trials.report(0, 1, 0.1) == CONTINUE  # after its files were damaged
    assert trials.report(1, 1, 0.5) == CONTINUE


def test_an_epoch_told_again_by_other_workers_is_not_judged_anew():
    trials = made(scheduler="asha", reduction_factor=2)
    assert [trials.report(number, 1, number / 10) for number in range(3)] == [CONTINUE] * 3
    assert trials.report(0, 1, 0.0, repeated=True) == CONTINUE


def test_median_forgets_the_scores_of_a_trial_that_starts_over():
    trials = made(scheduler="median")
    for number in range(4):
        assert trials.report(number, 1, 0.8) == CONTINUE
    trials.start_over(0)
    assert trials.report(0, 1, 0.1) == STOP


@pytest.mark.parametrize("scheduler", ["asha", "hyperband"])
def test_no_halving_ends_a_trial_that_trains_to_its_end(scheduler):
    for epochs, grace in ((4, 9), (9, 1), (1, 1), (8, 2)):
        trials = made(epochs=epochs, scheduler=scheduler, grace_epochs=grace)
        assert [trials.report(0, epoch, 0.5) for epoch in range(1, epochs + 1)] == [CONTINUE] * epochs


@pytest.mark.parametrize(
    ("epochs", "factor", "count"), [(3, 2, 3), (6, 2, 4), (20, 3, 4), (9, 3, 3), (1, 2, 1), (125, 5, 4)]
)
def test_the_last_bracket_of_hyperband_has_no_rung_before_the_end_of_training(epochs, factor, count):
    trials = made(epochs=epochs, scheduler="hyperband", reduction_factor=factor)
    assert len(trials.scheduler._brackets) == count
    assert [rung for rung, _ in trials.scheduler._brackets[-1]._rungs if rung < epochs] == []


def brackets(trials: Trials, count: int) -> list[int]:
    """The epoch of the first stop in each trial's bracket; none is higher than the longest trial's last."""
    for number in range(count):
        trials.add(number)
    return [trials.scheduler._trial_info[each.trial_id]._rungs[-1][0] for each in trials.added.values()]


def test_hyperband_has_brackets_of_about_the_same_epochs_that_stop_later_and_later():
    trials = made(epochs=9, scheduler="hyperband", reduction_factor=3)
    counts = Counter(brackets(trials, 340))
    assert set(counts) == {1, 3, 9}
    # 9, 5 and 3 of 17 trials, as ceil(3 * 3 ** s / (s + 1)) has it.
    assert [counts[first] for first in (1, 3, 9)] == pytest.approx([180, 100, 60], rel=0.2)


def test_a_trial_of_hyperband_has_the_same_bracket_when_it_is_run_again_whatever_numpy_drew():
    np.random.seed(0)  # noqa: NPY002 (Ray draws from the global state)
    first = brackets(made(epochs=9, scheduler="hyperband", reduction_factor=3, seed=1), 20)
    np.random.seed(1)  # noqa: NPY002
    assert brackets(made(epochs=9, scheduler="hyperband", reduction_factor=3, seed=1), 20) == first
    assert brackets(made(epochs=9, scheduler="hyperband", reduction_factor=3, seed=2), 20) != first


def test_hyperband_compares_a_trial_with_those_of_its_bracket_alone():
    trials = made(epochs=9, scheduler="hyperband", reduction_factor=3)
    first_stops = brackets(trials, 20)
    for epoch in (1, 2, 3):
        for number, first in enumerate(first_stops):
            score = 0.9 if first == 1 else 0.1 - number / 1000
            decision = trials.report(number, epoch, score) if f"ray{number}" in trials.scheduler._trial_info else STOP
            if first == 9 or (first == 3 and epoch < 3):
                assert decision == CONTINUE


def test_hyperband_of_trials_of_unknown_length_has_as_many_brackets_as_its_authors():
    unknown = study(training={"max_steps": 10}, search={"scheduler": "hyperband"})
    assert len(make_scheduler(unknown)._brackets) == 5


def test_median_stops_what_was_never_as_good_as_half_of_the_others_and_needs_three_of_them():
    trials = made(scheduler="median", grace_epochs=1)
    assert [trials.report(number, 1, score) for number, score in enumerate((0.6, 0.7, 0.1))] == [CONTINUE] * 3
    assert trials.report(3, 1, 0.5) == STOP  # the median of 0.1, 0.6 and 0.7
    assert trials.report(4, 1, 0.6) == CONTINUE
    assert trials.report(2, 2, 0.2) == CONTINUE  # nobody else is as far


def test_median_leaves_a_trial_in_peace_until_the_grace_is_over_and_never_pauses_one():
    trials = made(scheduler="median", grace_epochs=2)
    first = [trials.report(number, 1, score) for number, score in enumerate((0.6, 0.7, 0.8, 0.0))]
    second = [trials.report(number, 2, score) for number, score in enumerate((0.6, 0.7, 0.8, 0.0))]
    assert (first, second) == ([CONTINUE] * 4, [CONTINUE] * 3 + [STOP])


@pytest.mark.parametrize("last", [{"failed": "for a reason"}, {"fold_epoch": {}}, {}])
@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median"])
def test_a_trial_that_ends_without_a_score_is_no_end_of_the_study(scheduler, last):
    trials = made(scheduler=scheduler)
    for number in range(4):
        trials.add(number)
        if number % 2:
            trials.report(number, 1, 0.5)
        trials.end(number, **last)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [trials.report(number, 1, 0.5) for number in range(4, 9)] == [CONTINUE] * 5


def test_an_epoch_counts_once_for_the_median_and_the_last_one_of_a_finished_trial_counts_too():
    trials = made(scheduler="median")
    for number, score in enumerate((0.2, 0.4, 0.4, 0.4)):
        trials.report(number, 1, score)
        trials.end(number, epoch=1 if number else 2, score=0.2)
    own = {number: trials.scheduler._results[trial] for number, trial in trials.added.items()}
    assert {number: [(each["epoch"], each["score"]) for each in results] for number, results in own.items()} == {
        0: [(1, 0.2), (2, 0.2)],
        1: [(1, 0.4)],
        2: [(1, 0.4)],
        3: [(1, 0.4)],
    }
    assert all(each.keys() == {"epoch", "score"} for results in own.values() for each in results)


def test_folds_told_again_after_a_retry_count_once_for_the_median_and_are_not_judged_anew():
    trials = made(scheduler="median", grace_epochs=1)
    assert [trials.report(0, fold, fold / 5, fold=fold - 1) for fold in (1, 2)] == [CONTINUE] * 2
    for epoch in (1, 2, 3):
        for number in (1, 2, 3):
            trials.report(number, epoch, 0.9)
    assert [trials.report(0, fold, fold / 5, fold=fold - 1) for fold in (1, 2)] == [CONTINUE] * 2
    assert trials.scheduler._running_mean(trials.added[0], 2) == pytest.approx(0.3)
    assert trials.report(0, 3, 0.4) == STOP


def record(number: int, state: TrialState, *scores: float) -> TrialRecord:
    by_epoch = dict(enumerate(scores, start=1))
    return TrialRecord(f"t{number:04d}", number, state, max(scores), scores_by_epoch=by_epoch)


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median"])
def test_in_a_resumed_study_trials_are_compared_with_those_that_have_ended(scheduler):
    past = [record(number, TrialState.FINISHED, *[0.9] * 9) for number in range(30)]
    assert Trials(make_scheduler(searching(scheduler=scheduler))).report(99, 4, 0.1) == CONTINUE
    resumed = Trials(make_scheduler(searching(scheduler=scheduler), past))
    assert [resumed.report(number, 4, 0.1) for number in range(99, 119)].count(STOP) > 5
    assert resumed.report(200, 4, 0.95) == CONTINUE


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median"])
def test_scores_of_trials_that_failed_later_count_in_a_resumed_study_as_in_the_run_they_failed_in(scheduler):
    past = [record(number, TrialState.FAILED, 0.9) for number in range(30)]
    within = Trials(make_scheduler(searching(scheduler=scheduler)))
    for number in range(30):
        within.report(number, 1, 0.9)
    resumed = Trials(make_scheduler(searching(scheduler=scheduler), past))
    decisions = [[trials.report(number, 1, 0.1) for number in range(99, 119)] for trials in (within, resumed)]
    assert decisions[0] == decisions[1]
    assert STOP in decisions[0]


def test_a_trial_that_is_still_to_go_on_is_not_compared_with_itself():
    past = [record(number, TrialState.RUNNING, 0.9) for number in range(4)]
    resumed = Trials(make_scheduler(searching(scheduler="median"), past))
    assert resumed.report(99, 1, 0.1) == CONTINUE


def resumed(scheduler: str, past: list[TrialRecord]) -> Trials:
    return Trials(make_scheduler(searching(epochs=16, scheduler=scheduler, reduction_factor=2), past))


@pytest.mark.parametrize("scheduler", ["asha", "hyperband"])
def test_a_trial_that_goes_on_stands_at_the_rungs_that_it_had_passed_with_the_scores_of_their_epochs(scheduler):
    own = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    trials = resumed(scheduler, [record(0, TrialState.RUNNING, *own)])
    trials.add(0)
    rungs = dict(trials.scheduler._trial_info["ray0"]._rungs)
    passed = {epoch: own[epoch - 1] for epoch in rungs if epoch <= 6}
    assert passed
    assert trials.report(0, 7, 0.9) == CONTINUE
    assert {epoch: scores["ray0"] for epoch, scores in rungs.items() if scores} == passed


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median"])
def test_a_trial_whose_driver_died_before_it_stored_that_it_was_stopped_is_stopped_at_its_next_score(scheduler):
    """Its next score is that of the same epoch, which its workers report again from their state."""
    trials = resumed(scheduler, [record(number, TrialState.RUNNING, 0.9, 0.9) for number in range(2)])
    trials.add(0, stopping=2)
    trials.add(1)
    notice = {"notice": "a state is passed over"}
    assert trials.scheduler.on_trial_result(None, trials.added[0], notice) == CONTINUE
    assert [trials.report(number, 2, 0.9) for number in (0, 1)] == [STOP, CONTINUE]


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median"])
def test_folds_that_such_a_trial_is_told_again_come_before_the_one_that_it_is_stopped_at(scheduler):
    trials = resumed(scheduler, [record(0, TrialState.RUNNING, 0.9, 0.9)])
    trials.add(0, stopping=2)
    assert [trials.report(0, part, 0.9, fold=part - 1) for part in (1, 2)] == [CONTINUE, STOP]


def test_asha_does_not_judge_a_trial_that_goes_on_at_what_it_had_passed_but_at_what_comes():
    others = [record(number, TrialState.FINISHED, *[0.9] * 16) for number in range(1, 9)]
    trials = resumed("asha", [record(0, TrialState.RUNNING, *[0.1] * 6), *others])
    assert [trials.report(0, epoch, 0.1) for epoch in (7, 8)] == [CONTINUE, STOP]
    assert sorted(dict(trials.scheduler._brackets[0]._rungs)) == [1, 2, 4, 8, 16]
    assert all(0.9 in scores.values() for _, scores in trials.scheduler._brackets[0]._rungs)


def test_the_median_remembers_the_best_score_of_a_trial_that_goes_on_and_its_mean():
    others = [record(number, TrialState.FINISHED, *[0.5] * 9) for number in range(1, 4)]
    trials = resumed("median", [record(0, TrialState.RUNNING, 0.6, 0.6), *others])
    assert trials.report(0, 3, 0.1) == CONTINUE  # its best one is above the others' means
    assert trials.scheduler._running_mean(trials.added[0], 3) == pytest.approx(1.3 / 3)


def test_a_trial_that_tune_retries_keeps_for_the_median_what_it_reported_since_the_study_was_resumed():
    others = [record(number, TrialState.FINISHED, *[0.6] * 9) for number in range(1, 4)]
    trials = resumed("median", [record(0, TrialState.RUNNING, 0.5), *others])
    assert trials.report(0, 2, 0.99) == CONTINUE
    trials.retry(0)
    assert trials.report(0, 3, 0.5) == CONTINUE  # its best one is above the others' means


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median"])
def test_scores_before_a_trial_started_over_do_not_come_back_when_tune_retries_it(scheduler):
    trials = resumed(scheduler, [record(0, TrialState.RUNNING, *[0.9] * 8)])
    trials.add(0)
    trials.start_over(0)
    trials.retry(0)
    if scheduler == "median":
        assert trials.added[0] not in trials.scheduler._results
    else:
        assert all("ray0" not in scores for _, scores in trials.scheduler._trial_info["ray0"]._rungs)


@pytest.mark.parametrize(
    ("training", "space", "epochs"),
    [
        ({}, {}, 3),  # the default of transformers
        ({"num_train_epochs": 5}, {}, 5),
        ({"num_train_epochs": 2.5}, {}, 3),
        ({"num_train_epochs": 9}, {"num_train_epochs": {"type": "categorical", "choices": [2, 7, 4]}}, 7),
        ({}, {"num_train_epochs": {"type": "int", "low": 2, "high": 6}}, 6),
        ({}, {"num_train_epochs": {"type": "uniform", "low": 1.0, "high": 3.2}}, 4),
        ({"num_train_epochs": 2, "max_steps": 5000}, {}, 10**6),  # as many as the steps take
        ({"num_train_epochs": 2, "max_steps": 0}, {}, 2),  # no limit, as in transformers
        ({"num_train_epochs": 2}, {"max_steps": {"type": "int", "low": 100, "high": 5000}}, 10**6),
        (
            {"stages": [{"num_train_epochs": 6}, {}]},
            {"stages.1.max_steps": {"type": "int", "low": 100, "high": 5000}},
            10**6,
        ),
        ({"stages": [{}, {}]}, {"max_steps": {"type": "int", "low": 100, "high": 5000}}, 10**6),  # of each stage
        ({"stages": [{"num_train_epochs": 6}, {"freeze_encoder": True}]}, {}, 9),
        (
            {"stages": [{"num_train_epochs": 6}, {}]},
            {
                "num_train_epochs": {"type": "int", "low": 1, "high": 4},  # of the second stage alone
                "stages.0.num_train_epochs": {"type": "int", "low": 1, "high": 8},
            },
            12,
        ),
    ],
)
def test_the_longest_training_is_the_most_epochs_that_any_trial_may_train(training, space, epochs):
    assert longest_training(study(training=training, search_space=space)) == epochs


def test_the_longest_training_with_folds_is_their_number_however_long_each_trains():
    assert longest_training(study(training={"num_train_epochs": 9}, split={"folds": 4})) == 4
