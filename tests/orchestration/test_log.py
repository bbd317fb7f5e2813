"""Ray Tune's events become the study's records: in the store, in the tracker, and for whoever watches."""

from __future__ import annotations

import math
import pickle
import time

import numpy as np
import pytest

from tutti.bank.bank import Bank
from tutti.errors import ClusterError, Fault, StorageError
from tutti.records import CheckpointRecord, Predictions, TrialState

FINAL = {"final": True, "best_score": 0.8, "best_epoch": 2, "best_task_scores": {"mood": 0.8}, "checkpoint": "x"}


def test_a_started_trial_is_tracked_with_its_parameters_its_place_and_ray_s_name(logged):
    trial = logged.start()
    run = logged.run(trial)
    assert run.number == 0
    assert run.parameters == trial.config["parameters"]
    assert run.tags["tutti.host"] == "here"
    assert run.tags["tutti.optuna_number"] == "0"
    assert run.tags["tutti.ray_trial"] == trial.trial_id
    assert run.tags["tutti.checkpoint"] == str(logged.folder.trial("t0000") / "best")
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
        "validation_score": {1: 0.5, 2: 0.7},
        "train_loss": {1: 1.0, 2: 0.5},
        "mood/accuracy": {1: 0.5, 2: 0.7},
    }


def test_a_trial_whose_last_report_is_final_is_finished_with_its_best_score(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    logged.epoch(trial, 2, 0.8)
    logged.epoch(trial, 3, 0.6, **FINAL)
    logged.log.on_trial_complete(0, [], trial)
    record, run = logged.record(trial), logged.run(trial)
    assert (record.state, record.score, record.reason) == (TrialState.FINISHED, 0.8, None)
    assert record.seconds is not None
    assert (run.state, run.reason) == (TrialState.FINISHED, None)
    assert {name: [*run.metrics[name].values()] for name in ("score", "score/mood", "best_epoch")} == {
        "score": [0.8],
        "score/mood": [0.8],
        "best_epoch": [2.0],
    }


def test_a_finished_trial_gets_a_picture_for_each_task_with_validation_rows(logged):
    predictions = Predictions(
        ids=np.array(["a", "b"]),
        probabilities=np.eye(2, dtype=np.float32),
        labels=np.array([0, 1]),
        class_names=("n", "y"),
    )
    parts = {"mood": {"validation": predictions, "test": predictions}, "odd": {"test": predictions}}
    Bank(logged.folder.bank).put(CheckpointRecord("t0000", 0, 1, 0.8, {"mood": 0.8}, None), parts)
    trial = logged.start()
    logged.epoch(trial, 1, 0.8, **FINAL)
    logged.log.on_trial_complete(0, [], trial)
    logged.log.close()
    assert logged.run(trial).pictures == {"confusion_matrix/mood": b"mood: 2 rows"}


def test_the_picture_of_a_regression_has_a_name_of_its_own(logged):
    predictions = Predictions(ids=np.array(["a"]), values=np.array([1.5], np.float32), labels=np.array([2], np.float32))
    Bank(logged.folder.bank).put(
        CheckpointRecord("t0000", 0, 1, 0.8, {"mood": 0.8}, None), {"mood": {"validation": predictions}}
    )
    trial = logged.start()
    logged.epoch(trial, 1, 0.8, **FINAL)
    logged.log.on_trial_complete(0, [], trial)
    logged.log.close()
    assert logged.run(trial).pictures == {"predicted_and_true/mood": b"mood: 1 rows"}


def test_a_picture_that_cannot_be_drawn_costs_a_warning_and_nothing_else(logged, caplog):
    trial = logged.start()  # its bank entry is missing
    logged.epoch(trial, 1, 0.8, **FINAL)
    logged.log.on_trial_complete(0, [], trial)
    logged.log.close()
    assert logged.run(trial).state is TrialState.FINISHED
    assert logged.run(trial).pictures == {}
    assert "were not drawn: the bank" in caplog.text


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


def test_a_trial_whose_batch_was_halved_keeps_that_for_its_next_run_and_shows_it(logged):
    trial = logged.start()
    logged.log.on_trial_result(0, [], trial, {"halved": "no memory"})
    assert [(each.halved, each.fitted) for each in logged.store.unfinished()] == [("no memory", False)]
    logged.epoch(trial, 1, 0.8)
    assert [(each.halved, each.fitted) for each in logged.store.unfinished()] == [("no memory", True)]
    logged.epoch(trial, 2, 0.8, **FINAL)
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is TrialState.FINISHED
    assert logged.run(trial).tags["tutti.halved_batch"] == "no memory"


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_a_trial_that_begins_anew_with_half_its_batch_has_the_scores_of_that_alone(logged, parts):
    trial = logged.start()
    logged.epoch(trial, 1, 0.8, whole=False)
    logged.epoch(trial, 2, 0.9, whole=False)
    logged.log.on_trial_result(0, [], trial, {"halved": "no memory"})
    assert [(each.halved, each.fitted) for each in logged.store.unfinished()] == [("no memory", False)]
    scores = {1: 0.5, 2: 0.7, 3: 0.6}
    for part in range(1, parts + 1):
        logged.epoch(trial, part, scores[part], whole=False)
    if parts == 3:
        best = {"best_score": 0.7, "best_epoch": 2, "best_task_scores": {"mood": 0.7}}
        logged.epoch(trial, 4, 0.6, **FINAL | best)
    elif not parts:  # neither does that fit
        logged.log.on_trial_result(0, [], trial, {"failed": "out of memory", "infeasible": True})
    logged.log.on_trial_complete(0, [], trial)
    record, run = logged.record(trial), logged.run(trial)
    state, score, reason = {
        0: (TrialState.FAILED, None, "out of memory"),
        1: (TrialState.STOPPED, 0.5, "fell behind the others after epoch 1"),
        3: (TrialState.FINISHED, 0.7, None),
    }[parts]
    assert (record.state, record.score, record.reason) == (state, score, reason)
    assert record.task_scores == ({} if score is None else {"mood": score})
    assert run.metrics.get("score", {}) == ({} if score is None else {0: score})


def test_a_population_s_trial_that_takes_half_its_batch_over_goes_on_and_keeps_its_scores(logged, monkeypatch):
    monkeypatch.setattr(logged.log, "_exchange", lambda key, exchange: None)
    trial = logged.start()
    logged.epoch(trial, 1, 0.9)
    logged.log.on_trial_result(0, [], trial, {"exchanged": {}, "halved": "no memory"})
    assert logged.record(trial).scores_by_epoch == {1: 0.9}


@pytest.mark.parametrize(("whole", "fits"), [(False, False), (True, True)])
def test_a_trial_has_once_fitted_into_memory_from_its_first_whole_epoch_on_in_later_runs_too(logged, whole, fits):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5, whole=whole)
    assert [each.fitted for each in logged.store.unfinished()] == [fits]
    logged.epoch(trial, 2, 0.6, whole=True)
    logged.epoch(trial, 3, 0.6, whole=False)
    assert [each.fitted for each in logged.store.unfinished()] == [True]


def test_a_trial_that_does_not_fit_into_memory_has_failed_and_samplers_learn_from_it(logged, tmp_path):
    import optuna

    trial = logged.start()
    logged.log.on_trial_result(0, [], trial, {"failed": "out of memory", "infeasible": True})
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.FAILED
    assert logged.record(trial).reason == logged.run(trial).reason == "out of memory"
    [stored] = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path / 'optuna.db'}").trials
    assert stored.state is optuna.trial.TrialState.PRUNED
    assert stored.constraints == {"memory": 1.0}


def test_a_trial_that_did_not_finish_is_tracked_with_its_best_epoch(logged):
    stopped, cut_off, silent = logged.start(), logged.start(), logged.start()
    for trial in (stopped, cut_off):
        logged.epoch(trial, 1, 0.7)
        logged.epoch(trial, 2, 0.5)
    logged.log.on_trial_complete(0, [], stopped)
    logged.log.interrupt()
    for trial in (stopped, cut_off):
        metrics = logged.run(trial).metrics
        assert [metrics[name] for name in ("score", "score/mood", "best_epoch")] == [{0: 0.7}, {0: 0.7}, {0: 1.0}]
    assert "score" not in logged.run(silent).metrics


def test_the_objective_is_the_first_metric_that_the_tracker_is_told(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    assert next(iter(logged.run(trial).metrics)) == "validation_score"


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
    logged.epoch(trial, 1, score, **FINAL | {"best_score": score})
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.FAILED
    assert "not a finite number" in logged.record(trial).reason


def test_a_trial_that_ends_without_a_report_is_failed(logged):
    trial = logged.start()
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is TrialState.FAILED
    assert logged.run(trial).reason == "ended without a single report"


def test_a_trial_whose_actor_died_is_failed_with_the_first_line_of_the_error(logged):
    trial = logged.start()
    trial.get_error = lambda: RuntimeError("\nno space left on device\nat line 3")
    logged.log.on_trial_error(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.FAILED
    assert logged.record(trial).reason == logged.run(trial).reason == "no space left on device"


def test_a_best_epoch_whose_report_was_lost_with_a_worker_is_kept_all_the_same(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    logged.epoch(trial, 4, 0.6, **FINAL | {"best_epoch": 3})
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).scores_by_epoch == {1: 0.5, 3: 0.8, 4: 0.6}
    assert logged.record(trial).task_scores == {"mood": 0.8}


def test_a_trial_that_is_tried_again_stays_one_trial(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    logged.log.on_trial_start(0, [], trial)
    logged.epoch(trial, 1, 0.9)  # told again after the retry
    logged.epoch(trial, 2, 0.6, **FINAL | {"best_score": 0.6})
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).scores_by_epoch == {1: 0.5, 2: 0.6}
    assert logged.run(trial).metrics["validation_score"] == {1: 0.5, 2: 0.6}
    assert list(logged.tracker.runs) == ["", "t0000"]


def test_what_a_trial_would_go_on_from_is_removed_once_it_has_ended(logged):
    trial = logged.start()
    state = logged.folder.trial("t0000") / "resume" / "epoch-1"
    best = logged.folder.trial("t0000") / "best"
    for folder in (state, best):
        folder.mkdir(parents=True)
    logged.epoch(trial, 1, 0.8, **FINAL)
    assert state.is_dir()
    logged.log.on_trial_complete(0, [], trial)
    assert not state.parent.exists()
    assert best.is_dir()


def test_an_interrupted_trial_is_told_to_the_tracker_and_stays_to_be_resumed_in_the_store(logged):
    ended, cut_off = logged.start(), logged.start()
    state = logged.folder.trial("t0001") / "resume" / "epoch-1"
    state.mkdir(parents=True)
    logged.epoch(ended, 1, 0.8, **FINAL)
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


def test_an_interrupted_trial_says_why(logged):
    trial = logged.start()
    logged.log.interrupt("the study ended")
    assert (logged.run(trial).state, logged.run(trial).reason) == (TrialState.INTERRUPTED, "the study ended")


def test_checkpoints_are_kept_within_their_limit_each_time_a_trial_has_ended(logged):
    for ended in (1, 2):
        trial = logged.start()
        logged.epoch(trial, 1, 0.8, **FINAL)
        logged.log.on_trial_complete(0, [], trial)
        assert logged.pruned == [*range(1, ended + 1)]


def test_checkpoints_that_cannot_be_removed_cost_a_warning_and_nothing_else(logged, caplog):
    def refused() -> None:
        raise StorageError(Fault("best", "be written whole", "Read-only file system", "name another folder"))

    logged.log._prune = refused
    trial = logged.start()
    logged.epoch(trial, 1, 0.8, **FINAL)
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is TrialState.FINISHED
    assert "beyond storage.max_gigabytes: best must be written whole; got Read-only file system" in caplog.text


def away(*given: object, **named: object) -> None:
    raise StorageError(
        Fault("the study's database", "be read and written", "database is locked", "go on with --resume")
    )


def test_an_end_that_cannot_be_kept_ends_the_study_and_leaves_the_trial_to_be_resumed(logged, monkeypatch):
    trial, other = logged.start(), logged.start()
    state = logged.folder.trial("t0000") / "resume" / "epoch-1"
    state.mkdir(parents=True)
    logged.epoch(trial, 1, 0.8, **FINAL)
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


def test_while_every_record_is_kept_a_step_of_tune_s_ends_in_peace(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5)
    logged.log.on_step_end(0, [])
    assert logged.log.failure is None
    assert logged.record(trial).scores_by_epoch == {1: 0.5}


def test_tune_s_snapshot_holds_nothing_of_it(logged):
    logged.start()
    assert vars(pickle.loads(pickle.dumps(logged.log))) == {}


def test_a_notice_is_shown_at_once_and_stands_in_the_trial_s_run(logged):
    trial, shown = logged.start(), []
    logged.log._notify = shown.append
    logged.log.on_trial_result(0, [], trial, {"notice": "the state stage-0-step-4 is passed over", "at": 1.0})
    logged.epoch(trial, 1, 0.5)
    assert shown == ["t0000: the state stage-0-step-4 is passed over"]
    logged.epoch(trial, 1, 0.5, final=True, best_epoch=1, best_score=0.5, best_task_scores={"mood": 0.5}, host="h")
    logged.log.on_trial_complete(0, [], trial)
    assert logged.run(trial).tags["tutti.notice"] == "the state stage-0-step-4 is passed over"


def test_the_seconds_of_a_trial_that_went_on_are_those_of_its_earlier_runs_too(logged):
    cut_off, now = logged.start(), time.time()
    logged.epoch(cut_off, 1, 0.5, began=1000.0 - 3600.0, at=1000.0)
    [left] = logged.store.unfinished()
    assert left.seconds == 3600.0
    logged.log._running.clear()  # its driver is killed
    again = logged.go_on(left)
    logged.epoch(again, 2, 0.8, began=now - 60.0, at=now, **FINAL)
    logged.log.on_trial_complete(0, [], again)
    assert logged.record(again).seconds == pytest.approx(3660.0, abs=30.0)
    assert logged.run(again).metrics["seconds"][0] == logged.record(again).seconds


def test_trials_that_an_earlier_run_left_running_are_told_as_interrupted_though_they_have_not_gone_on(logged):
    killed, again = logged.start(), logged.start()
    logged.epoch(killed, 1, 0.5, began=1001.0 - 60.0)
    logged.log._running.clear()  # their driver is killed
    logged.go_on(logged.store.unfinished()[1])
    assert logged.log.interrupt("the study ended") == ["t0001", "t0000"]
    for trial in (killed, again):
        assert (logged.run(trial).state, logged.run(trial).reason) == (TrialState.INTERRUPTED, "the study ended")
    assert logged.run(killed).metrics["score"] == {0: 0.5}
    assert logged.run(killed).metrics["seconds"][0] == pytest.approx(60.0, abs=1.0)
    assert logged.log.interrupt() == []
    assert [proposal.key for proposal in logged.store.unfinished()] == ["t0000", "t0001"]


def test_a_trial_whose_actor_was_lost_before_it_started_has_failed_in_a_run_of_its_own(logged):
    trial = logged.start()
    logged.log._running.clear()
    logged.tracker.runs.pop("t0000")
    logged.log.on_trial_error(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.FAILED


@pytest.mark.parametrize("ended", ["stopped", "failed", "finished"])
def test_of_trials_that_have_ended_only_those_that_finished_have_predictions_that_vote(logged, ended):
    trial, other = logged.start(), logged.start()
    for each in (trial, other):
        key, number = each.config["key"], each.config["number"]
        Bank(logged.folder.bank).put(CheckpointRecord(key, number, 1, 0.8, {"mood": 0.8}, None), {})
    if ended == "stopped":  # another one has reached the target before its last report was heard
        logged.log.stop("the study needs it no more")
    else:
        logged.epoch(trial, 1, 0.8, **FINAL if ended == "finished" else {"failed": "its workers died"})
        logged.log.on_trial_complete(0, [], trial)
    left = {"stopped": [], "failed": ["t0001"], "finished": ["t0000", "t0001"]}[ended]
    assert [record.key for record in Bank(logged.folder.bank).records()] == left
