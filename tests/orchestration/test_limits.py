"""Studies on a real Ray that end at a limit and go on once it is raised, and trials that are stopped early."""

from __future__ import annotations

import time
from typing import Any

import optuna
import pytest

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.orchestration.worker.trial import Stopped
from tutti.records import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow]
FINISHED, STOPPED, RUNNING = TrialState.FINISHED, TrialState.STOPPED, TrialState.RUNNING


def report(epoch: int, score: float, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "score": score, "task_scores": {"a": score}, "metrics": {}, "at": 0.0, "host": "", **more}


def second_never_ends(study: StudyConfig, folder: StudyFolder, trial: dict[str, Any], *, tell: Any) -> None:
    """Trials that train nothing: t0000 has 0.9 once t0001 has reported, which goes on until it is stopped."""
    score, reported = 0.9 if trial["number"] == 0 else 0.5, folder.path / "reported"
    while trial["number"] == 0 and not reported.exists():
        time.sleep(0.1)
    for epoch in range(1, 3000 if trial["number"] == 1 else 5):
        time.sleep(0.1)
        if not tell(report(epoch, score)):
            raise Stopped
        reported.touch()
    tell(report(5, score, final=True, best_epoch=5, best_score=score, best_task_scores={"a": score}))


def waits_for_a_file(study: StudyConfig, folder: StudyFolder, trial: dict[str, Any], *, tell: Any) -> None:
    """A trial that has no score until the file ``enough`` is there."""
    while not (folder.path / "enough").exists():
        time.sleep(0.1)
        if not tell({"alive": True}):
            raise Stopped
    tell(report(1, 0.5, final=True, best_epoch=1, best_score=0.5, best_task_scores={"a": 0.5}))


def states(done: Any) -> list[TrialState]:
    return [trial.state for trial in done.trials]


def test_a_target_that_is_reached_stops_what_runs_and_a_resumed_study_goes_on_without_it(run_alone, tmp_path):
    done, _ = run_alone(tmp_path, second_never_ends, concurrent=2, target_score=0.8)
    assert states(done)[:2] == [FINISHED, STOPPED]
    assert done.ending.limit == "target_score"
    assert done.ending.reason in done.trials[1].reason
    assert done.trials[1].scores_by_epoch[1] == 0.5
    assert not done.complete
    again, _ = run_alone(tmp_path, second_never_ends, target_score=0.8)
    assert (again.trials, again.ending) == (done.trials, done.ending)
    more, _ = run_alone(tmp_path, second_never_ends)
    assert states(more) == [FINISHED, STOPPED, FINISHED]
    assert (more.complete, more.ending) == (True, None)


def test_trials_that_the_hours_cut_off_go_on_when_there_are_more(run_alone, tmp_path):
    done, folder = run_alone(tmp_path, waits_for_a_file, trials=1, max_hours=20 / 3600)
    assert states(done) == [RUNNING]
    assert done.interrupted == ("t0000",)
    assert done.ending.limit == "max_hours"
    (folder.path / "enough").touch()
    again, _ = run_alone(tmp_path, waits_for_a_file, trials=1, max_hours=20 / 3600)
    assert (again.trials, again.ending) == (done.trials, done.ending)
    more, _ = run_alone(tmp_path, waits_for_a_file, trials=1, max_hours=1)
    assert states(more) == [FINISHED]
    assert (more.complete, more.ending) == (True, None)


def test_an_isolated_trial_that_takes_too_long_is_stopped_and_makes_room_for_the_next(run_alone, tmp_path):
    def second_takes_long(study: StudyConfig, folder: StudyFolder, trial: dict[str, Any], *, tell: Any) -> None:
        hour = 3600.0 * (trial["number"] == 1)
        for epoch in (1, 2):
            if not tell(report(epoch, 0.5, began=1.0) | {"at": hour * epoch}):
                raise Stopped
        tell(report(3, 0.5, final=True, best_epoch=1, best_score=0.5, best_task_scores={"a": 0.5}))

    done, _ = run_alone(tmp_path, second_takes_long, isolation="isolated", max_trial_hours=1.5)
    assert states(done) == [FINISHED, STOPPED, FINISHED]
    assert done.trials[1].reason == "had trained for 2 h of at most 1.5 after epoch 2"
    assert done.trials[1].scores_by_epoch == {1: 0.5, 2: 0.5}


def test_out_of_patience_a_study_begins_no_trial_and_ends_when_the_last_has(run_alone, tmp_path):
    def quick(study: StudyConfig, folder: StudyFolder, trial: dict[str, Any], *, tell: Any) -> None:
        score = 0.9 - trial["number"] / 10
        tell(report(1, score, final=True, best_epoch=1, best_score=score, best_task_scores={"a": score}))

    done, _ = run_alone(tmp_path, quick, trials=9, patience=2)
    assert states(done) == [FINISHED] * 3
    assert done.ending.limit == "patience"
    assert done.interrupted == ()


def test_what_a_scheduler_stops_is_pruned_to_optuna_with_what_it_reported(run_alone, tmp_path):
    def first_are_better(study: StudyConfig, folder: StudyFolder, trial: dict[str, Any], *, tell: Any) -> None:
        score = 0.9 if trial["number"] < 4 else 0.1
        for epoch in (1, 2):
            if not tell(report(epoch, score)):
                raise Stopped
        tell(report(3, score, final=True, best_epoch=1, best_score=score, best_task_scores={"a": score}))

    done, folder = run_alone(tmp_path, first_are_better, scheduler="median", trials=6)
    assert states(done) == [FINISHED] * 4 + [STOPPED] * 2
    stored = optuna.load_study(study_name="s", storage=folder.optuna_url).trials
    assert [trial.state.name for trial in stored] == ["COMPLETE"] * 4 + ["PRUNED"] * 2
    for trial in stored[4:]:
        assert trial.intermediate_values in ({1: 0.1}, {1: 0.1, 2: 0.1})
        assert trial.value == 0.1
