"""Ray Tune's events become the study's records: in the store, in the tracker, and for whoever watches."""

from __future__ import annotations

import math
import pickle
from dataclasses import asdict
from pathlib import Path

import pytest
from ray.exceptions import RayTaskError

from tutti.bank.bank import Bank
from tutti.errors import ClaimLostError, Fault, StorageError
from tutti.records import CheckpointRecord, TrialState, Usage
from tutti.workflows import progress
from tutti.workflows.console import best_effort_console
from tutti.workflows.progress import Progress


def test_a_started_trial_is_tracked_with_its_parameters_its_place_and_ray_s_name(logged):
    trial = logged.start()
    run = logged.run(trial)
    assert run.number == 0
    assert run.parameters == trial.config["parameters"]
    assert run.tags["tutti.host"] == "here"
    assert run.tags["tutti.optuna_number"] == "0"
    assert run.tags["tutti.ray_trial"] == trial.trial_id
    assert run.tags["tutti.checkpoint"] == str(logged.folder.trial("t0000").best)
    assert logged.record(trial).state is TrialState.RUNNING
    assert len(logged.watched) == 1


def test_an_epoch_s_scores_go_to_the_store_and_its_curves_to_the_tracker(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    logged.epoch(trial, 2, 0.7)
    assert logged.record(trial).scores_by_epoch == {1: 0.5, 2: 0.7}
    assert logged.record(trial).task_scores == {"mood": 0.7}
    assert logged.run(trial).metrics == {
        "train/loss": {10: 1.0, 20: 0.5},
        "score": {1: 0.5, 2: 0.7},
        "validation_score": {1: 0.5, 2: 0.7},
        "train_loss": {1: 1.0, 2: 0.5},
        "mood/accuracy": {1: 0.5, 2: 0.7},
    }


def test_speed_and_memory_of_a_trial_go_to_the_store_and_the_tracker_whatever_becomes_of_it(logged):
    for final in ({}, logged.FINAL):
        trial = logged.start()
        for epoch, more in ((1, {}), (2, final)):
            usage = Usage(100 * epoch, 2000 * epoch, 2.5 * epoch, memory=2_000_000)
            logged.epoch(trial, epoch, 0.5, usage=asdict(usage), began=0.0, at=10.0 * epoch, **more)
        logged.log.on_trial_complete(0, [], trial)
        speed = {"train_samples_per_second": 40.0, "train_tokens_per_second": 800.0, "peak_memory_megabytes": 2.0}
        assert logged.record(trial).speed == speed
        metrics = logged.run(trial).metrics
        assert {name: [*metrics[name].values()] for name in speed} == {name: [value] for name, value in speed.items()}


def test_whoever_watches_is_called_after_each_event(logged):
    trial = logged.start()
    events = [lambda: logged.epoch(trial, 1, 0.5), lambda: logged.log.on_trial_complete(0, [], trial)]
    for called, event in enumerate(events, start=2):
        event()
        assert len(logged.watched) == called


def test_trials_are_recorded_though_what_shows_them_can_no_longer_be_written(logged, monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0)
    with Path("/dev/full").open("w") as full:
        out = best_effort_console(full)
        with Progress(out, logged.store.records, total=1, tasks=["mood"]) as watch:
            monkeypatch.setattr(logged.log, "_watch", watch)
            monkeypatch.setattr(logged.log, "_notify", out.print)
            trial = logged.start()
            logged.epoch(trial, 1, 0.5, notice="a state is passed over")
            logged.epoch(trial, 2, 0.8, **logged.FINAL)
            logged.log.on_trial_complete(0, [], trial)
        with pytest.raises(OSError, match="No space left"):
            full.close()
    assert logged.log.failure is None
    assert (logged.record(trial).state, logged.record(trial).score) == (TrialState.FINISHED, 0.8)
    assert logged.run(trial).state is TrialState.FINISHED


def test_epochs_are_counted_where_each_has_several_evaluations(logged):
    logged.log._recorder._evals_per_epoch = 4
    stopped, finished = logged.start(), logged.start()
    for trial in (stopped, finished):
        for evaluation in (1, 2, 3):
            logged.epoch(trial, evaluation, 0.5 + evaluation / 10, whole=False)
    logged.epoch(finished, 4, 0.7, **logged.FINAL)
    for trial in (stopped, finished):
        logged.log.on_trial_complete(0, [], trial)
    assert logged.record(stopped).reason == "fell behind the others after epoch 0.75"
    assert [logged.run(trial).metrics["best_epoch"][0] for trial in (stopped, finished)] == [0.75, 0.5]


def test_a_trial_whose_last_report_is_final_is_finished_with_its_best_score(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    logged.epoch(trial, 2, 0.8)
    logged.epoch(trial, 3, 0.6, **logged.FINAL)
    logged.log.on_trial_complete(0, [], trial)
    record, run = logged.record(trial), logged.run(trial)
    assert (record.state, record.score, record.reason) == (TrialState.FINISHED, 0.8, None)
    assert record.seconds is not None
    assert (run.state, run.reason) == (TrialState.FINISHED, None)
    assert {name: [*run.metrics[name].values()] for name in ("score", "score/mood", "best_epoch")} == {
        "score": [0.5, 0.8, 0.8],
        "score/mood": [0.8],
        "best_epoch": [2.0],
    }


def test_a_trial_that_the_scheduler_ends_is_stopped_early_and_says_after_which_epoch(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.STOPPED
    assert logged.record(trial).reason == logged.run(trial).reason == "fell behind the others after epoch 1"


def test_a_trial_whose_time_is_over_is_stopped_early_for_that_reason(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    logged.epoch(trial, 2, 0.6, stopped="had trained for 2 h of at most 2")
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.STOPPED
    assert logged.record(trial).reason == "had trained for 2 h of at most 2 after epoch 2"
    assert logged.record(trial).scores_by_epoch == {1: 0.5, 2: 0.6}


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_trial_whose_time_is_over_within_an_epoch_ends_with_what_it_has_reported(logged, epochs):
    trial = logged.start()
    if epochs:
        logged.epoch(trial, 1, 0.5)
    stopped = {"overtime": True, "began": 0.0, "at": 3600.0, "host": "h", "stopped": "had trained for 1 h of at most 1"}
    logged.log.on_trial_result(0, [], trial, stopped)
    logged.log.on_trial_complete(0, [], trial)
    record = logged.record(trial)
    assert record.state is TrialState.STOPPED
    assert record.reason == f"had trained for 1 h of at most 1 after epoch {epochs}"
    assert record.score == (0.5 if epochs else None)


def test_a_trial_that_did_not_finish_is_tracked_with_its_best_epoch(logged):
    stopped, cut_off, silent = logged.start(), logged.start(), logged.start()
    for trial in (stopped, cut_off):
        logged.epoch(trial, 1, 0.7)
        logged.epoch(trial, 2, 0.5)
    logged.log.on_trial_complete(0, [], stopped)
    logged.log.interrupt()
    for trial in (stopped, cut_off):
        metrics = logged.run(trial).metrics
        assert metrics["score"] == {1: 0.7, 2: 0.7}
        assert [metrics[name] for name in ("score/mood", "best_epoch")] == [{0: 0.7}, {0: 1.0}]
    assert "score" not in logged.run(silent).metrics
    assert logged.record(stopped).task_scores == {"mood": 0.7}


def test_the_score_so_far_is_the_first_metric_that_the_tracker_is_told(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    assert next(iter(logged.run(trial).metrics)) == "score"


def test_a_trial_that_reports_its_own_failure_is_failed_for_that_reason(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    logged.log.on_trial_result(0, [], trial, {"failed": "the loss is nan after step 7"})
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.FAILED
    assert logged.record(trial).reason == logged.run(trial).reason == "the loss is nan after step 7"


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_fails_the_trial(logged, score):
    trial = logged.start()
    logged.epoch(trial, 1, score, **logged.FINAL | {"best_score": score})
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.FAILED
    assert "not a finite number" in logged.record(trial).reason
    assert not logged.run(trial).metrics.keys() & {"validation_score", "score"}


def test_a_trial_that_ends_without_a_report_is_failed(logged):
    trial = logged.start()
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is TrialState.FAILED
    assert logged.run(trial).reason == "ended without a single report"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("\nno space left on device\nat line 3"), "no space left on device"),
        (RayTaskError("train", "Traceback ...", ValueError("no rows\nat line 3")), "no rows"),
        (RuntimeError("x" * 9000), "x" * 500),
        (None, "the trial's actor died"),
    ],
)
def test_a_trial_whose_actor_died_is_failed_with_the_first_line_of_the_error(logged, error, reason):
    trial = logged.start()
    trial.get_error = lambda: error
    logged.log.on_trial_error(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.FAILED
    assert logged.record(trial).reason == logged.run(trial).reason == reason


def test_a_trial_that_is_tried_again_stays_one_trial(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    logged.log.on_trial_start(0, [], trial)
    logged.epoch(trial, 1, 0.5, repeated=True)  # told again after the retry
    logged.epoch(trial, 2, 0.6, **logged.FINAL | {"best_score": 0.6})
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).scores_by_epoch == {1: 0.5, 2: 0.6}
    assert logged.run(trial).metrics["validation_score"] == {1: 0.5, 2: 0.6}
    assert logged.run(trial).started_over == -math.inf
    assert list(logged.tracker.runs) == ["", "t0000"]


def test_a_trial_that_starts_anew_has_the_scores_of_its_new_weights(logged):
    trial = logged.start()
    for epoch, score in {1: 0.5, 2: 0.9}.items():
        logged.epoch(trial, epoch, score)
    logged.log.on_trial_start(0, [], trial)
    logged.epoch(trial, 1, 0.6, at=2001.0)
    assert logged.record(trial).scores_by_epoch == {1: 0.6}
    logged.epoch(trial, 2, 0.7, at=2002.0)
    assert logged.record(trial).scores_by_epoch == {1: 0.6, 2: 0.7} == logged.run(trial).metrics["validation_score"]


def test_an_epoch_that_is_reported_again_is_recorded_only_where_it_is_missing(logged, monkeypatch):
    trial, tracked = logged.start(), []
    track = logged.tracker.log_metrics
    monkeypatch.setattr(
        logged.tracker, "log_metrics", lambda *args, at, **named: tracked.append(at) or track(*args, at=at, **named)
    )
    logged.epoch(trial, 1, 0.5, evaluated=900.0)
    logged.epoch(trial, 1, 0.5, evaluated=900.0, repeated=True)
    assert tracked == [900.0]
    logged.epoch(trial, 2, 0.6, evaluated=950.0, repeated=True)  # its first report was lost
    assert tracked == [900.0, 950.0]
    assert logged.record(trial).scores_by_epoch == {1: 0.5, 2: 0.6}
    assert logged.run(trial).metrics["validation_score"] == {1: 0.5, 2: 0.6}


def test_an_epoch_that_a_driver_had_only_tracked_before_it_died_is_kept_when_it_is_reported_again(logged, monkeypatch):
    trial = logged.start()
    with monkeypatch.context() as killed:
        killed.setattr(logged.store, "report", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            logged.epoch(trial, 1, 0.5)
    logged.epoch(trial, 1, 0.5, repeated=True)
    assert logged.record(trial).scores_by_epoch == logged.run(trial).metrics["validation_score"] == {1: 0.5}


def test_what_a_trial_would_go_on_from_is_removed_once_it_has_ended(logged):
    trial = logged.start()
    state = logged.folder.trial("t0000").resume / "epoch-1"
    best = logged.folder.trial("t0000").best
    for folder in (state, best):
        folder.mkdir(parents=True)
    logged.epoch(trial, 1, 0.8, **logged.FINAL)
    assert state.is_dir()
    logged.log.on_trial_complete(0, [], trial)
    assert not state.parent.exists()
    assert best.is_dir()


def test_checkpoints_are_kept_within_their_limit_each_time_a_trial_has_ended(logged):
    for ended in (1, 2):
        trial = logged.start()
        logged.epoch(trial, 1, 0.8, **logged.FINAL)
        logged.log.on_trial_complete(0, [], trial)
        assert logged.pruned == [*range(1, ended + 1)]


def test_checkpoints_that_cannot_be_removed_cost_a_warning_and_nothing_else(logged, caplog):
    def refused() -> None:
        raise StorageError(Fault("best", "be written whole", "Read-only file system", "name another folder"))

    logged.log._ender._prune = refused
    trial = logged.start()
    logged.epoch(trial, 1, 0.8, **logged.FINAL)
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is TrialState.FINISHED
    assert "beyond storage.max_gigabytes: best must be written whole; got Read-only file system" in caplog.text


def test_a_driver_that_finds_another_in_its_place_when_it_prunes_ends(logged):
    def taken_over() -> None:
        raise ClaimLostError(Fault("the study", "be run by one driver", "another one", "let it go on"))

    logged.log._ender._prune = taken_over
    trial = logged.start()
    logged.epoch(trial, 1, 0.8, **logged.FINAL)
    logged.log.on_trial_complete(0, [], trial)
    with pytest.raises(ClaimLostError):
        logged.log.on_step_end(0, [])


def test_tune_s_snapshot_holds_nothing_of_it(logged):
    logged.start()
    assert vars(pickle.loads(pickle.dumps(logged.log))) == {}


def test_notices_are_shown_at_once_and_stand_in_the_trial_s_run(logged):
    trial, shown = logged.start(), []
    logged.log._notify = shown.append
    notices = ["the state stage-0-step-4 is passed over", "the state stage-0-step-2 is passed over"]
    for notice in notices:
        logged.log.on_trial_result(0, [], trial, {"notice": notice, "at": 1.0})
    logged.epoch(trial, 1, 0.5)
    assert shown == [f"t0000: {notice}" for notice in notices]
    logged.epoch(trial, 1, 0.5, final=True, best_epoch=1, best_score=0.5, best_task_scores={"mood": 0.5}, host="h")
    logged.log.on_trial_complete(0, [], trial)
    assert logged.run(trial).tags["tutti.notice"] == "\n".join(notices)


@pytest.mark.parametrize("ended", ["stopped", "failed", "finished"])
def test_of_trials_that_have_ended_only_those_that_finished_have_predictions_that_vote(logged, ended):
    trial, other = logged.start(), logged.start()
    for each in (trial, other):
        key, number = each.config["key"], each.config["number"]
        Bank(logged.folder.bank).put(CheckpointRecord(key, number, 1, 0.8, {"mood": 0.8}, None), {})
    if ended == "stopped":  # another one has reached the target before its last report was heard
        logged.log.stop("the study needs it no more")
    else:
        logged.epoch(trial, 1, 0.8, **logged.FINAL if ended == "finished" else {"failed": "its workers died"})
        logged.log.on_trial_complete(0, [], trial)
    left = {"stopped": [], "failed": ["t0001"], "finished": ["t0000", "t0001"]}[ended]
    assert [record.key for record in Bank(logged.folder.bank).records()] == left


def test_a_trial_that_another_driver_has_ended_keeps_that_end_and_its_predictions(logged):
    """As after a driver was cut off from its server, and another one went on in its place and ended."""
    trial = logged.start()
    key = trial.config["key"]
    bank = Bank(logged.folder.bank)
    bank.put(CheckpointRecord(key, 0, 1, 0.9, {"mood": 0.9}, None), {})
    logged.store.finish(key, state=TrialState.FINISHED, score=0.9, task_scores={"mood": 0.9})
    logged.log.on_trial_result(0, [], trial, {"failed": "its workers are lost"})
    logged.log.on_trial_complete(0, [], trial)
    assert [record.key for record in bank.records()] == [key]
    assert logged.record(trial).state is TrialState.FINISHED
    assert logged.log.interrupt() == []
    assert logged.run(trial).state is TrialState.RUNNING  # that is for the other driver to end
