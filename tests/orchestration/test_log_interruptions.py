"""A study that ends before its trials do: what is told of them, and what they would go on from."""

from __future__ import annotations

import time

import pytest

from tutti.errors import ClaimLostError, ClusterError, Fault, StorageError
from tutti.records import TrialState


def test_an_interrupted_trial_is_told_to_the_tracker_and_stays_to_be_resumed_in_the_store(logged):
    ended, cut_off = logged.start(), logged.start()
    state = logged.folder.trial("t0001").resume / "epoch-1"
    state.mkdir(parents=True)
    logged.epoch(ended, 1, 0.8, **logged.FINAL)
    logged.log.on_trial_complete(0, [], ended)
    logged.epoch(cut_off, 1, 0.5)
    assert logged.log.interrupt() == ["t0001"]
    assert logged.run(cut_off).state is TrialState.INTERRUPTED
    assert logged.run(ended).state is TrialState.FINISHED
    assert [proposal.key for proposal in logged.store.unfinished()] == ["t0001"]
    assert state.is_dir()
    assert logged.log.interrupt() == []


def test_trials_that_the_study_needs_no_more_are_stopped_early_with_the_reason_whatever_they_have_reported(logged):
    reported, silent = logged.start(), logged.start()
    waiting = logged.store.ask()
    logged.epoch(reported, 1, 0.5)
    logged.log.stop("the study needs it no more")
    for trial in (reported, silent):
        assert logged.record(trial).state is logged.run(trial).state is TrialState.STOPPED
        assert logged.record(trial).reason == logged.run(trial).reason == "the study needs it no more"
    assert logged.record(reported).scores_by_epoch == {1: 0.5}
    assert logged.log.interrupt() == []
    assert logged.store.unfinished() == []
    record, run = logged.store.records()[waiting.number], logged.tracker.runs[waiting.key]
    assert record.state is run.state is TrialState.STOPPED
    assert record.reason == run.reason == "the study needs it no more; it had not begun"
    assert run.parameters == waiting.parameters


def away(*given: object, **named: object) -> None:
    raise StorageError(
        Fault("the study's database", "be read and written", "database is locked", "go on with --resume")
    )


def test_a_stop_whose_driver_dies_before_the_trial_s_end_is_stored_is_known_to_the_next_driver(logged):
    stopped, overtime, running, finished = (logged.start() for _ in range(4))
    logged.epoch(stopped, 3, 0.5, done=True)
    logged.epoch(overtime, 1, 0.5, done=True, stopped="had trained for 2 h of at most 2")
    logged.epoch(running, 1, 0.5, done=False)
    logged.epoch(finished, 2, 0.8, done=True, **logged.FINAL)
    assert [proposal.resumption.stopping for proposal in logged.store.unfinished()] == [3, 0, 0, 0]


def test_an_end_that_cannot_be_kept_ends_the_study_and_leaves_the_trial_to_be_resumed(logged, monkeypatch):
    trial, other = logged.start(), logged.start()
    state = logged.folder.trial("t0000").resume / "epoch-1"
    state.mkdir(parents=True)
    logged.epoch(trial, 1, 0.8, **logged.FINAL)
    with monkeypatch.context() as patch:
        patch.setattr(logged.store, "finish", away)
        logged.log.on_trial_complete(0, [], trial)  # Tune would tell the trial as failed of what is raised here
    logged.epoch(other, 1, 0.5)  # the database is back, and the study is over all the same
    logged.log.on_trial_error(0, [], other)
    with pytest.raises(StorageError, match="database is locked; go on with --resume"):
        logged.log.on_step_end(0, [])
    assert logged.log.interrupt() == ["t0000", "t0001"]
    assert [proposal.key for proposal in logged.store.unfinished()] == ["t0000", "t0001"]
    assert logged.record(other).scores_by_epoch == {}
    assert logged.run(trial).state is logged.run(other).state is TrialState.INTERRUPTED
    assert state.is_dir()


def test_trials_are_told_as_interrupted_while_the_database_cannot_be_read(logged, monkeypatch):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    monkeypatch.setattr(logged.store, "records", away)
    assert logged.log.interrupt() == ["t0000"]
    assert logged.run(trial).state is TrialState.INTERRUPTED
    assert list(logged.run(trial).metrics["seconds"])


def test_a_trial_lost_with_everybody_who_could_train_it_is_left_to_be_resumed(logged):
    def nobody_left() -> None:
        raise ClusterError(Fault("the study's workers", "start and stay", "a dead node", "go on with --resume"))

    logged.log.check_pools = nobody_left
    trial = logged.start()
    logged.log.on_trial_error(0, [], trial)
    with pytest.raises(ClusterError, match="a dead node"):
        logged.log.on_step_end(0, [])
    assert logged.record(trial).state is TrialState.RUNNING


def test_the_seconds_of_a_trial_that_went_on_are_those_of_its_earlier_runs_too(logged):
    cut_off, now = logged.start(), time.time()
    logged.epoch(cut_off, 1, 0.5, began=1000.0 - 3600.0, at=1000.0)
    [left] = logged.store.unfinished()
    assert left.resumption.seconds == 3600.0
    logged.log._running.clear()  # its driver is killed
    again = logged.go_on(left)
    logged.epoch(again, 2, 0.8, began=now - 60.0, at=now, **logged.FINAL)
    logged.log.on_trial_complete(0, [], again)
    assert logged.record(again).seconds == pytest.approx(3660.0, abs=30.0)
    assert logged.run(again).metrics["seconds"][0] == logged.record(again).seconds


def test_the_seconds_of_a_trial_that_was_tried_again_are_those_of_every_attempt(logged):
    trial, now = logged.start(), time.time()
    for epoch, (began, at) in enumerate(((100.0, 90.0), (100.0, 80.0), (50.0, 40.0), (20.0, 15.0)), start=1):
        logged.epoch(trial, epoch, 0.5, began=now - began, at=now - at)
    [left] = logged.store.unfinished()
    assert left.resumption.seconds == pytest.approx(20.0 + 10.0 + 5.0)
    logged.log.interrupt()
    assert logged.run(trial).metrics["seconds"][0] == pytest.approx(100.0, abs=5.0)  # with the time between them


@pytest.mark.parametrize("sign", [{"began": 940.0, "whole": False}, {"whole": True}])
def test_a_trial_that_an_earlier_run_trained_is_stopped_as_one_that_had_not_gone_on(logged, sign):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5, **sign)
    logged.log._running.clear()  # its driver is killed
    logged.log.stop("the study needs it no more")
    assert logged.record(trial).reason == "the study needs it no more; it had not gone on"


def test_a_driver_whose_study_another_has_taken_over_tells_of_no_interruption(logged, monkeypatch):
    def taken_over() -> None:
        raise ClaimLostError(Fault("the study", "be run by one driver", "another one", "let it go on"))

    trial = logged.start()
    monkeypatch.setattr(logged.store, "unfinished", taken_over)
    with pytest.raises(ClaimLostError):
        logged.log.interrupt()
    assert logged.run(trial).state is TrialState.RUNNING


def test_trials_that_an_earlier_run_left_running_are_told_as_interrupted_though_they_have_not_gone_on(logged):
    killed, again = logged.start(), logged.start()
    logged.epoch(killed, 1, 0.5, began=1001.0 - 60.0)
    logged.log._running.clear()  # their driver is killed
    logged.go_on(logged.store.unfinished()[1])
    assert logged.log.interrupt("the study ended") == ["t0001", "t0000"]
    for trial in (killed, again):
        assert (logged.run(trial).state, logged.run(trial).reason) == (TrialState.INTERRUPTED, "the study ended")
    assert logged.run(killed).metrics["score"] == {1: 0.5}
    assert logged.run(killed).metrics["seconds"][0] == pytest.approx(60.0, abs=1.0)
    assert logged.log.interrupt() == []
    assert [proposal.key for proposal in logged.store.unfinished()] == ["t0000", "t0001"]


def test_a_trial_whose_actor_was_lost_before_it_started_has_failed_in_a_run_of_its_own(logged):
    trial = logged.start()
    logged.log._running.clear()
    logged.tracker.runs.pop("t0000")
    logged.log.on_trial_error(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.FAILED
