"""What is reported of trials, how they end, and the records of both."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import optuna
import pytest

from tutti.errors import StudyError
from tutti.records import TrialState
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import Resumption
from tutti.search.warm_start import OlderStudy


@pytest.fixture
def url(each_database) -> str:
    return each_database


def test_the_record_of_a_finished_trial_has_its_best_epoch(opened):
    store = opened()
    key = store.ask().key
    for epoch, score in ((1, 0.4), (2, 0.7), (3, 0.6)):
        store.report(key, epoch=epoch, score=score, task_scores={"a": score, "b": epoch})
    store.finish(key, state=TrialState.FINISHED, score=0.7, seconds=12.5)
    (record,) = store.records()
    assert record.state is TrialState.FINISHED
    assert (record.score, record.task_scores, record.seconds, record.reason) == (0.7, {"a": 0.7, "b": 2}, 12.5, None)
    assert record.measured == {}  # of a study whose only objective is the score
    assert record.scores_by_epoch == {1: 0.4, 2: 0.7, 3: 0.6}
    assert list(record.parameters) == ["learning_rate", "dropout", "epochs", "pooling"]


def test_the_record_has_the_scores_of_report_sets_at_its_best_epoch_or_else_the_last(opened):
    store = opened()
    for sets in ({2: 0.3}, {2: 0.3, 3: 0.4}, {1: 0.1, 3: 0.4}, {}):
        key = store.ask().key
        for epoch, score in ((1, 0.4), (2, 0.7), (3, 0.6)):
            of_sets = {"a/mmlu": sets[epoch]} if epoch in sets else {}
            store.report(key, epoch=epoch, score=score, task_scores={"a": score, **of_sets})
    assert [record.task_scores for record in store.records()] == [{"a": 0.7}] * 4
    assert [record.set_scores.get("a/mmlu") for record in store.records()] == [0.3, 0.3, 0.4, None]


def test_the_record_of_one_trial_is_that_of_the_list_behind_older_ones_too(opened, run_trials, url):
    run_trials(opened(name="older"), 2)
    store = opened(older=[OlderStudy("older", url)])
    run_trials(store, 1)
    store.ask()
    assert [store.record(key) for key in ("t0000", "t0001")] == store.records()
    with pytest.raises(StudyError, match="t0002"):
        store.record("t0002")


def test_the_record_of_a_trial_whose_end_tells_task_scores_has_these_whatever_was_reported(opened, url):
    store = opened()
    for state in (TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED):
        key = store.ask().key
        for fold, score in ((1, 0.9), (2, 0.7)):
            store.report(key, epoch=fold, score=score, task_scores={"a": score})
        value = math.nan if state is TrialState.FAILED else 0.6
        last = {"score": value, "task_scores": {"a": value}}
        store.finish(key, state=state, **last)
    assert [(record.score, record.task_scores) for record in store.records()] == [
        (0.6, {"a": 0.6}), (0.6, {"a": 0.6}), (0.9, {"a": 0.9}),
    ]  # fmt: skip
    assert [trial.value for trial in optuna.load_study(storage=url, study_name="s").trials] == [0.6, 0.7, None]


def test_optuna_knows_each_end_by_its_own_state(opened, url):
    store = opened()
    for state in (TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED):
        key = store.ask().key
        store.report(key, epoch=1, score=0.5, task_scores={})
        store.report(key, epoch=2, score=0.3, task_scores={})
        store.finish(key, state=state, reason=None if state is TrialState.FINISHED else "so it was")
    trials = optuna.load_study(storage=url, study_name="s").trials
    assert [(trial.state.name, trial.value) for trial in trials] == [("COMPLETE", 0.5), ("PRUNED", 0.3), ("FAIL", None)]
    assert [record.reason for record in store.records()] == [None, "so it was", "so it was"]
    assert [record.score for record in store.records()] == [0.5, 0.5, 0.5]


def test_a_repeated_report_or_one_after_the_end_changes_nothing_and_a_trial_ends_once(opened):
    store = opened()
    key = store.ask().key
    store.report(key, epoch=1, score=0.5, task_scores={"a": 0.5})
    store.report(key, epoch=1, score=0.9, task_scores={"a": 0.9})
    store.finish(key, state=TrialState.STOPPED, reason="first", seconds=1.0)
    ended = store.records()
    with pytest.raises(RuntimeError, match="a trial that is stopped early cannot become failed"):
        store.finish(key, state=TrialState.FAILED, reason="second", seconds=2.0)
    store.report(key, epoch=2, score=0.8, task_scores={})
    store.keep(key, Resumption(seconds=3.0))
    assert store.records() == ended
    assert (ended[0].score, ended[0].task_scores, ended[0].reason) == (0.5, {"a": 0.5}, "first")


@pytest.mark.parametrize("objectives", [["score"], ["score", "seconds"]])
def test_what_a_trial_that_begins_anew_had_reported_is_known_to_nobody(opened, url, objectives):
    store = opened(objectives=objectives)
    key, other = store.ask().key, store.ask().key
    for each in (key, other):
        for part, score in ((1, 0.9), (2, 0.8)):
            store.report(each, epoch=part, score=score, task_scores={"a": score})
    store.forget_reports(key)
    record = store.record(key)
    assert (record.score, record.task_scores, record.scores_by_epoch) == (None, {}, {})
    store.report(key, epoch=1, score=0.7, task_scores={"a": 0.7})
    for each in (key, other):
        store.finish(each, state=TrialState.STOPPED)
        store.forget_reports(each)  # has no effect on an ended trial
    assert [(trial.score, trial.task_scores) for trial in store.records()] == [(0.7, {"a": 0.7}), (0.9, {"a": 0.9})]
    stored = optuna.load_study(storage=url, study_name="s").trials
    assert [trial.value for trial in stored] == ([0.7, 0.8] if objectives == ["score"] else [None, None])


def test_the_score_that_a_trial_ended_with_is_its_record_though_an_older_driver_kept_a_better_report(opened):
    store = opened()
    key = store.ask().key
    for part, score in ((1, 0.9), (2, 0.8)):
        store.report(key, epoch=part, score=score, task_scores={"a": score})
    store.finish(key, state=TrialState.FINISHED, score=0.8)
    assert (store.record(key).score, store.record(key).task_scores) == (0.8, {"a": 0.8})


@pytest.mark.parametrize(("folds_reported", "fold"), [(0, 1), (1, 1), (2, None)])
def test_a_trial_that_was_left_is_taken_up_in_the_fold_that_has_no_report_yet(opened, folds_reported, fold):
    store = opened()
    key = store.ask().key
    known = Resumption(halved="no memory", fitted=True, in_new_stage=True, stopping=2, seconds=12.5, fold=1)
    store.keep(key, known)
    for part in range(1, folds_reported + 1):
        store.report(key, epoch=part, score=0.5, task_scores={})
    (left,) = store.unfinished()
    assert left.resumption == replace(known, fold=fold)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_refused_and_the_trial_can_still_fail(opened, value):
    store = opened()
    key = store.ask().key
    with pytest.raises(ValueError, match="not a finite number"):
        store.report(key, epoch=1, score=value, task_scores={})
    with pytest.raises(ValueError, match="not a finite number"):
        store.report(key, epoch=1, score=0.5, task_scores={"a": value})
    store.finish(key, state=TrialState.FAILED, reason="NaN")
    assert store.records()[0].scores_by_epoch == {}
    assert store.unfinished() == []


@pytest.mark.parametrize("score", [None, math.nan])
def test_a_finished_trial_without_a_score_fails_rather_than_runs_for_ever(opened, score):
    store = opened()
    store.finish(store.ask().key, state=TrialState.FINISHED, score=score)
    (record,) = store.records()
    assert record.state is TrialState.FAILED
    assert "not a finite number" in record.reason


def test_an_unknown_trial_is_a_study_error(opened):
    store = opened()
    for key in ("t0009", "nonsense"):
        with pytest.raises(StudyError, match=key):
            store.finish(key, state=TrialState.FAILED)


def test_a_trial_has_ended_when_it_did_whatever_the_time_zone_of_the_machine_that_reads_it(opened, monkeypatch):
    store = opened()
    before = time.time()
    store.finish(store.ask().key, state=TrialState.STOPPED)
    try:
        monkeypatch.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        (record,) = store.records()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert before <= record.ended <= time.time()


def exchange(store: StudyStore, key: str, epoch: int, donor: str, parameters: dict[str, Any]) -> None:
    [left] = [each for each in store.unfinished() if each.key == key]
    store.keep(key, left.resumption.exchanged({"epoch": epoch, "donor": donor, "parameters": parameters}))


def test_a_trial_that_started_over_has_the_exchanges_that_came_then_and_none_that_are_void(opened):
    store = opened()
    proposal = store.ask()
    for epoch, dropout in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.4)):
        exchange(store, proposal.key, epoch, "t0007", {**proposal.parameters, "dropout": dropout})
    assert [each["epoch"] for each in store.records()[0].exchanges] == [1, 2]
    assert [left.parameters["dropout"] for left in store.unfinished()] == [0.4]


def test_a_trial_that_went_on_from_another_one_is_taken_up_again_with_what_it_had_since(opened, url):
    store = opened()
    proposal = store.ask()
    later = {**proposal.parameters, "dropout": 0.25}
    exchange(store, proposal.key, 1, "t0007", proposal.parameters)
    for _ in range(2):  # a restarted driver may repeat the call
        exchange(store, proposal.key, 2, "t0003", later)
    assert [left.parameters for left in store.unfinished()] == [later]
    store.finish(proposal.key, state=TrialState.FINISHED, score=0.5)
    (record,) = store.records()
    assert [(each["epoch"], each["donor"]) for each in record.exchanges] == [(1, "t0007"), (2, "t0003")]
    assert record.exchanges[1]["parameters"] == later
    assert record.parameters == proposal.parameters  # the sampled ones, from which the sampler learns
