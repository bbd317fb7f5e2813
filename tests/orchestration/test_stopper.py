"""What Tune asks of a study's stopper, without Ray."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from tutti.config.study import Search
from tutti.orchestration import stopper as module
from tutti.orchestration.stopper import StudyStopper
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
    second.keep_time()
    assert store.run_seconds() == 3600


def test_a_resumed_study_with_a_limit_that_it_has_reached_knows_so_from_the_start(stopper, store):
    finish(store, 0.9)
    each, _ = stopper(target_score=0.8)
    assert each.stop_all() is True


def test_tune_s_snapshot_holds_nothing_of_it(stopper):
    assert vars(pickle.loads(pickle.dumps(stopper()[0]))) == {}
