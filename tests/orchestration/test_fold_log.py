"""What the trials of a study with folds tell becomes a run for each fold, and the trial's own record."""

from __future__ import annotations

import math

import pytest

from tutti.records import TrialState

BEST = {"best_score": 0.7, "best_task_scores": {"mood": 0.7}}


@pytest.fixture
def folds() -> bool:
    return True


def fold_epoch(logged, trial, fold: int, epoch: int, score: float, at: float | None = None, **more) -> None:
    evaluation = {"epoch": epoch, "score": score, "task_scores": {"mood": score}, "metrics": {"train_loss": 1 / epoch}}
    evaluation |= {"steps": [(10 * epoch, {"loss": 1 / epoch})], "precision": "bf16", **more}
    result = {"fold": fold, "fold_epoch": evaluation, "at": at or 1000.0 + epoch, "host": "there"}
    logged.log.on_trial_result(0, [], trial, result)


def fold_end(logged, trial, fold: int, best: float, mean: float, **more) -> None:
    result = {"fold": fold, "epoch": fold + 1, "score": mean, "task_scores": {"mood": mean}, "at": 2000.0}
    result |= {"fold_best": {"score": best, "epoch": 1, "task_scores": {"mood": best}}, "host": "there"}
    logged.log.on_trial_result(0, [], trial, {**result, "metrics": {"fold_score": best}, "steps": [], **more})


def whole_trial(logged):
    trial = logged.start()
    fold_epoch(logged, trial, 0, 1, 0.9)
    fold_epoch(logged, trial, 0, 2, 0.5)
    fold_end(logged, trial, 0, 0.9, 0.9)
    fold_epoch(logged, trial, 1, 1, 0.6)
    fold_end(logged, trial, 1, 0.6, 0.75, **logged.FINAL | BEST)
    logged.log.on_trial_complete(0, [], trial)
    return trial


def test_a_fold_s_epochs_go_to_a_run_of_its_own_below_the_trial_s(logged):
    trial = whole_trial(logged)
    runs = logged.tracker.runs
    assert list(runs) == ["", "t0000", "t0000/fold-0", "t0000/fold-1"]
    first = runs["t0000/fold-0"]
    assert first.metrics == {
        "validation_score": {1: 0.9, 2: 0.5},
        "train_loss": {1: 1.0, 2: 0.5},
        "train/loss": {10: 1.0, 20: 0.5},
        "fold_score": {0: 0.9},
        "fold_score/mood": {0: 0.9},
        "best_epoch": {0: 1.0},
    }
    assert (first.tags["tutti.fold"], first.number, first.state) == ("0", 0, TrialState.FINISHED)
    place = logged.folder.trial("t0000").path
    assert first.tags["tutti.checkpoint"] == str(place / "fold-0" / "best")
    assert logged.run(trial).tags["tutti.checkpoint"] == str(place)
    assert logged.run(trial).tags["tutti.precision"] == "bf16"
    assert logged.run(trial).metrics["validation_score"] == {1: 0.9, 2: 0.75}
    assert logged.run(trial).metrics["fold_score"] == {1: 0.9, 2: 0.6}
    assert "train_loss" not in logged.run(trial).metrics


def test_a_fold_s_best_epoch_counts_epochs_and_its_evaluations_stand_at_their_own_time(logged):
    logged.log._recorder._evals_per_epoch = 4
    trial = logged.start()
    fold_epoch(logged, trial, 0, 1, 0.9, at=1500.0, evaluated=1001.0)
    fold_end(logged, trial, 0, 0.9, 0.9)
    run = logged.tracker.runs["t0000/fold-0"]
    assert run.metrics["best_epoch"] == {0: 0.25}
    assert run.times["validation_score", 1] == 1001.0


def test_a_finished_trial_s_score_is_that_of_its_out_of_fold_rows(logged):
    trial = whole_trial(logged)
    record, run = logged.record(trial), logged.run(trial)
    assert record.scores_by_epoch == {1: 0.9, 2: 0.75}
    assert (record.state, record.score, record.task_scores) == (TrialState.FINISHED, 0.7, {"mood": 0.7})
    ends = {name: [*run.metrics[name].values()] for name in ("score", "score/mood", "folds")}
    assert ends == {"score": [0.9, 0.7], "score/mood": [0.7], "folds": [2]}
    assert "best_epoch" not in run.metrics


@pytest.mark.parametrize("end", ["stopped", "failed", "interrupted", "stopped by the study's end"])
def test_a_trial_that_ends_after_two_folds_has_the_mean_of_both(logged, end):
    trial = logged.start()
    for fold, (best, mean) in enumerate(((0.9, 0.9), (0.5, 0.7))):
        fold_epoch(logged, trial, fold, 1, best)
        fold_end(logged, trial, fold, best, mean)
    if end == "failed":
        logged.log.on_trial_result(0, [], trial, {"failed": "the loss is nan"})
    if end in ("stopped", "failed"):
        logged.log.on_trial_complete(0, [], trial)
    else:  # by a run of the study that it has not gone on in
        logged.log._running.clear()
        logged.log.interrupt() if end == "interrupted" else logged.log.stop("the study has reached its target")
    record, run = logged.record(trial), logged.run(trial)
    assert (run.metrics["score"], run.metrics["folds"]) == ({1: 0.9, 2: 0.7}, {0: 2})
    assert run.metrics["score/mood"] == {0: 0.7}
    assert end == "interrupted" or (record.score, record.task_scores) == (0.7, {"mood": 0.7})
    if end == "stopped":
        assert record.state is TrialState.STOPPED
        assert record.reason == run.reason == "fell behind the others after 2 folds"


def test_a_fold_that_was_being_trained_ends_as_its_trial_does(logged):
    failed, cut_off = logged.start(), logged.start()
    for trial in (failed, cut_off):
        fold_epoch(logged, trial, 0, 1, 0.5)
    logged.log.on_trial_result(0, [], failed, {"failed": "the loss is nan after step 7"})
    logged.log.on_trial_complete(0, [], failed)
    logged.log.interrupt()
    runs = logged.tracker.runs
    assert (runs["t0000/fold-0"].state, runs["t0000/fold-0"].reason) == (TrialState.FAILED, runs["t0000"].reason)
    assert (runs["t0001/fold-0"].state, runs["t0001/fold-0"].reason) == (TrialState.INTERRUPTED, runs["t0001"].reason)
    assert logged.record(failed).reason == "the loss is nan after step 7"


def test_folds_told_again_by_a_trial_that_goes_on_stand_once_and_a_lost_end_is_made_good(logged):
    trial = logged.start()
    fold_epoch(logged, trial, 0, 1, 0.9)  # its end was on its way when the worker died
    logged.log.on_trial_start(0, [], trial)
    fold_end(logged, trial, 0, 0.9, 0.9)
    fold_epoch(logged, trial, 1, 1, 0.6)
    logged.log.on_trial_start(0, [], trial)
    fold_end(logged, trial, 0, 0.9, 0.9)
    assert [each.resumption.fold for each in logged.store.unfinished()] == [
        1
    ]  # whose run a driver that is killed now leaves
    fold_epoch(logged, trial, 1, 1, 0.6)
    fold_end(logged, trial, 1, 0.6, 0.75, **logged.FINAL | BEST)
    logged.log.on_trial_complete(0, [], trial)
    runs = logged.tracker.runs
    assert list(runs) == ["", "t0000", "t0000/fold-0", "t0000/fold-1"]
    assert {run.state for key, run in runs.items() if key} == {TrialState.FINISHED}
    assert runs["t0000/fold-0"].metrics["fold_score"] == {0: 0.9}
    assert logged.record(trial).scores_by_epoch == {1: 0.9, 2: 0.75}


def test_a_fold_that_is_trained_again_ends_again(logged):
    trial = logged.start()
    fold_epoch(logged, trial, 0, 1, 0.9)
    fold_end(logged, trial, 0, 0.9, 0.9)
    logged.log._running.clear()  # its driver is killed, and what the fold predicted is damaged
    again = logged.go_on(logged.store.unfinished()[0])
    fold_epoch(logged, again, 0, 1, 0.4)
    fold_end(logged, again, 0, 0.4, 0.4)
    logged.log.interrupt()
    run = logged.tracker.runs["t0000/fold-0"]
    assert (run.state, run.metrics["fold_score"]) == (TrialState.FINISHED, {0: 0.9, 1: 0.4})


@pytest.mark.parametrize("goes_on", [False, True], ids=["in the same run", "after its driver was killed"])
@pytest.mark.parametrize("is_complete", [False, True])
def test_a_fold_that_begins_anew_is_tracked_with_its_new_scores(logged, goes_on, is_complete):
    trial = logged.start()
    for epoch, score in ((1, 0.9), (2, 0.8)):
        fold_epoch(logged, trial, 0, epoch, score)
    if is_complete:
        fold_end(logged, trial, 0, 0.9, 0.9)
    if goes_on:
        logged.log._running.clear()
        trial = logged.go_on(logged.store.unfinished()[0])
    for epoch, score in ((1, 0.4), (2, 0.5)):
        fold_epoch(logged, trial, 0, epoch, score, at=2000.0 + epoch)
    assert logged.tracker.runs["t0000/fold-0"].metrics["validation_score"] == {1: 0.4, 2: 0.5}
    assert logged.run(trial).started_over == -math.inf


def test_a_fold_that_has_ended_keeps_its_end_where_its_trial_goes_on_later(logged, monkeypatch):
    trial = logged.start()
    fold_epoch(logged, trial, 0, 1, 0.9)
    fold_end(logged, trial, 0, 0.9, 0.9)
    logged.log._running.clear()  # its driver is killed
    again = logged.go_on(logged.store.unfinished()[0])
    told = []
    for call in ("start_trial", "end_trial"):
        monkeypatch.setattr(logged.tracker, call, lambda key, **_: told.append(key))
    fold_end(logged, again, 0, 0.9, 0.9)
    assert told == []


def test_a_trial_has_fitted_into_memory_after_an_epoch_of_its_first_fold(logged):
    trial = logged.start()
    assert [each.resumption.fitted for each in logged.store.unfinished()] == [False]
    fold_epoch(logged, trial, 0, 1, 0.9)
    assert [each.resumption.fitted for each in logged.store.unfinished()] == [True]


def test_a_halved_trial_has_not_fitted_before_the_new_score_of_its_fold_is_logged(logged, monkeypatch):
    def killed(key: str, *, at: float) -> None:
        raise KeyboardInterrupt

    trial = logged.start()
    fold_epoch(logged, trial, 0, 1, 0.9)
    logged.log.on_trial_result(0, [], trial, {"halved": "no memory"})
    monkeypatch.setattr(logged.tracker, "start_over", killed)
    with pytest.raises(KeyboardInterrupt):
        fold_epoch(logged, trial, 0, 1, 0.8)
    assert [each.resumption.fitted for each in logged.store.unfinished()] == [False]


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.STOPPED, TrialState.INTERRUPTED])
def test_a_fold_that_a_killed_run_was_training_ends_as_its_trial_does(logged, state):
    trial = logged.start()
    fold_epoch(logged, trial, 0, 1, 0.9)
    fold_end(logged, trial, 0, 0.9, 0.9)
    fold_epoch(logged, trial, 1, 1, 0.6)
    logged.log._running.clear()  # its driver is killed
    again = logged.go_on(logged.store.unfinished()[0])
    fold_end(logged, again, 0, 0.9, 0.9)
    if state is TrialState.FAILED:
        logged.log.on_trial_result(0, [], again, {"failed": "the loss is nan"})
    if state is TrialState.INTERRUPTED:
        logged.log.interrupt()
    else:
        logged.log.on_trial_complete(0, [], again)
    runs = logged.tracker.runs
    assert [runs[f"t0000{fold}"].state for fold in ("", "/fold-0", "/fold-1")] == [state, TrialState.FINISHED, state]


def test_folds_that_are_whole_are_not_taken_for_one_that_was_cut_off(logged):
    trial = logged.start()
    fold_epoch(logged, trial, 0, 1, 0.9)
    assert [each.resumption.fold for each in logged.store.unfinished()] == [0]
    fold_end(logged, trial, 0, 0.9, 0.9)
    assert [each.resumption.fold for each in logged.store.unfinished()] == [None]


def test_what_the_folds_of_a_trial_would_go_on_from_is_removed_once_it_has_ended(logged):
    trial, place = logged.start(), logged.folder.trial("t0000").path
    for name in ("resume/fold-0", "fold-0/resume/epoch-1", "fold-0/best", "fold-1/resume"):
        (place / name).mkdir(parents=True)
    fold_end(logged, trial, 0, 0.9, 0.9)
    assert (place / "resume").is_dir()
    logged.log.on_trial_complete(0, [], trial)
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*")) == ["fold-0", "fold-0/best", "fold-1"]
