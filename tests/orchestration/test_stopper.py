"""What Tune asks of a study's stopper, without Ray."""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from tutti.config.study import Search
from tutti.errors import StorageError
from tutti.orchestration.driver import stopper as module
from tutti.orchestration.driver.stopper import StudyStopper
from tutti.records import TrialState


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The time that the stopper reads, to be moved by hand."""
    time = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: time.now))
    return time


@pytest.fixture
def stopper(store, clock):
    """A stopper with limits, and how often it has closed its broker."""
    closed: list[None] = []
    broker: Any = SimpleNamespace(close=SimpleNamespace(remote=lambda: closed.append(None)))

    def made(**limits: Any) -> tuple[StudyStopper, list[None]]:
        return StudyStopper(store, Search(**limits), broker=broker), closed

    return made


def finish(store, score: float) -> None:
    store.finish(store.ask().key, state=TrialState.FINISHED, score=score)


def test_the_target_ends_all_trials_once_the_trial_that_reached_it_is_in_the_store(stopper, store):
    each, closed = stopper(target_score=0.8)
    assert each.stop_all() is False
    finish(store, 0.9)
    assert each.stop_all() is False  # it looks at the store when a trial has ended
    each.on_trial_complete(0, [], None)
    assert each.stop_all() is each.stop_all() is True
    assert each.ending.limit == "target_score"
    assert closed == [None]


def test_a_study_out_of_patience_gets_no_new_trial_and_keeps_those_that_run(stopper, store):
    each, closed = stopper(patience=1)
    for score in (0.9, 0.5):
        finish(store, score)
    each.on_trial_complete(0, [], None)
    assert each.reached().limit == "patience"
    assert each.stop_all() is False
    assert each.ending is None
    assert closed == []


def test_the_hours_go_on_from_where_an_earlier_run_was_killed(stopper, store, clock):
    first, _ = stopper(max_hours=1)
    clock.now += 3000
    assert first.stop_all() is False
    clock.now += 5  # of these, a kill loses no more than what was not kept yet
    assert first.stop_all() is False
    second, closed = stopper(max_hours=1)
    clock.now += 599
    assert second.stop_all() is False
    clock.now += 1
    assert second.stop_all() is True
    assert second.ending.reason == "its trials have run for 1 h"
    assert closed == [None]
    second.save_run_time()
    assert store.run_seconds() == 3600


def test_a_busy_database_costs_a_study_nothing_but_a_later_look_at_its_clock(stopper, store, clock, monkeypatch):
    each, _ = stopper()
    clock.now += 20
    with monkeypatch.context() as busy:
        busy.setattr(store, "keep_run_seconds", lambda seconds: (_ for _ in ()).throw(StorageError()))
        assert each.stop_all() is False
    clock.now += 20
    assert each.stop_all() is False
    assert store.run_seconds() == 40


def test_a_busy_database_when_a_trial_ends_costs_a_later_look_at_the_trials(stopper, store, monkeypatch):
    each, _ = stopper(target_score=0.8)
    finish(store, 0.9)
    with monkeypatch.context() as busy:
        busy.setattr(store, "records", lambda: (_ for _ in ()).throw(StorageError()))
        each.on_trial_complete(0, [], None)
    assert each.stop_all() is False
    each.on_trial_complete(0, [], None)
    assert each.stop_all() is True


def test_a_resumed_study_with_a_limit_that_it_has_reached_knows_so_from_the_start(stopper, store):
    finish(store, 0.9)
    each, _ = stopper(target_score=0.8)
    assert each.stop_all() is True


def make_report(began: float, at: float, **more: Any) -> dict[str, Any]:
    return {"began": began, "at": at, "epoch": 1, "score": 0.5, **more}


def test_a_trial_ends_at_its_first_report_after_its_hours_and_says_so(stopper):
    each, _ = stopper(max_trial_hours=0.5)
    early, late = make_report(100, 1899), make_report(100, 1900)
    assert each("ray0", early) is False
    assert each("ray0", late) is True
    assert "stopped" not in early
    assert late["stopped"] == "had trained for 0.5 h of at most 0.5"
    within_an_epoch = {"began": 100, "at": 1900, "overtime": True}
    assert each("ray1", within_an_epoch) is True
    assert within_an_epoch["stopped"] == late["stopped"]


def test_a_trial_that_was_tried_again_has_no_more_hours_for_it_and_each_trial_has_its_own(stopper):
    each, _ = stopper(max_trial_hours=0.5)
    assert each("ray0", make_report(100, 1000)) is False
    assert each("ray1", make_report(5000, 5100)) is False
    assert each("ray0", make_report(9000, 9899)) is False  # the hours without workers are not the trial's
    assert each("ray0", make_report(9000, 9900)) is True


@pytest.mark.parametrize("last", [{"final": True}, {"failed": "for a reason"}])
def test_a_trial_that_has_ended_by_itself_is_not_stopped_for_its_time(stopper, last):
    each, _ = stopper(max_trial_hours=0.5)
    report = make_report(0, 9999, **last)
    assert each("ray0", report) is False
    assert "stopped" not in report


def test_without_a_limit_or_before_its_first_score_a_trial_goes_on(stopper):
    assert stopper()[0]("ray0", make_report(0, 1e9)) is False
    assert stopper(max_trial_hours=0.5)[0]("ray0", {"fold_epoch": {}}) is False


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_ends_its_trial_at_once(stopper, score):
    assert stopper()[0]("ray0", make_report(0, 1, score=score)) is True


def test_tune_s_snapshot_holds_nothing_of_it(stopper):
    assert vars(pickle.loads(pickle.dumps(stopper()[0]))) == {}
