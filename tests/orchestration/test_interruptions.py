"""A study is told to end in mid-trial, and ends whole once it goes on; of processes that are killed see tests/chaos."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import optuna
import pytest
import ray

from tutti.records import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow]
EPOCHS = 15


def ends(study) -> dict[int, object]:
    """Trial number to the time that Optuna keeps as its end."""
    stored = optuna.load_study(study_name=study.folder.name, storage=study.folder.optuna_url)
    return {trial.number: trial.datetime_complete for trial in stored.trials}


def check_went_on(study, key: str, *, from_epoch: int) -> None:
    """No epoch was trained twice, and none after the interruption is missing; a report may be lost with it."""
    epochs = study.reported_epochs(key)
    assert epochs == sorted(set(epochs)), "the trial started again"
    assert epochs[0] == 1
    assert set(range(from_epoch + 2, EPOCHS + 1)) <= set(epochs)
    assert not study.folder.trial(key).resume.exists()


def test_a_study_that_ctrl_c_has_ended_goes_on_where_it_was(make_study, tutti_command, interrupt, tmp_path):
    changes = {"training__num_train_epochs": EPOCHS, "search__trials": 2, "resources__concurrent_trials": 1}
    study = make_study(tmp_path, **changes)

    first = tutti_command("tune", study.file)
    first.wait_for(lambda: max(study.resume_epochs("t0001"), default=0) >= 4, what="a second trial under way")
    interrupt(first)
    assert first.wait() == 130, first.output
    assert "Interrupted: stopping the running trials" in first.output
    assert "1 trial cut off" in first.output
    assert "--resume" in first.output
    assert "Traceback" not in first.output
    assert first.left_behind() == []
    runs, ended, reached = study.runs(), ends(study), max(study.resume_epochs("t0001"))
    assert {key: run.info.status for key, run in runs.items()} == {"": "KILLED", "t0000": "FINISHED", "t0001": "KILLED"}
    assert runs["t0001"].data.tags["tutti.state"] == "interrupted"
    assert [record.state for record in study.records()] == [TrialState.FINISHED, TrialState.RUNNING]

    second = tutti_command("tune", study.file, "--resume")
    assert second.wait() == 0, second.output
    assert "2 of 2 trials done" in second.output
    assert second.left_behind() == []
    assert [record.state for record in study.records()] == [TrialState.FINISHED] * 2
    check_went_on(study, "t0001", from_epoch=reached)
    assert ends(study)[0] == ended[0]
    after = study.runs()
    assert {key: after[key].info.run_id for key in runs} == {key: run.info.run_id for key, run in runs.items()}
    assert {run.info.status for run in after.values()} == {"FINISHED"}


@pytest.mark.strain
def test_a_study_that_is_terminated_ends_as_after_ctrl_c(make_study, tutti_command, tutti, tmp_path):
    study = make_study(tmp_path, training__num_train_epochs=20, search__trials=1)
    first = tutti_command("tune", study.file)
    first.wait_for(lambda: max(study.resume_epochs("t0000"), default=0) >= 2, what="a trial under way")
    os.kill(first.process.pid, signal.SIGTERM)
    assert first.wait() == 130, first.output
    assert "1 trial cut off" in first.output
    assert "--resume" in first.output
    assert "Traceback" not in first.output
    assert first.left_behind() == []

    states = study.folder.trial("t0000").resume.glob("stage-*")
    newest = max(states, key=lambda state: int(state.name.rpartition("-")[2]))
    (newest / "model.safetensors").write_bytes(b"damaged")
    output = tutti("tune", study.file, "--resume")
    assert f"t0000: the state {newest} is passed over: " in output
    assert newest.name in study.runs()["t0000"].data.tags["tutti.notice"]


@pytest.mark.strain
def test_a_study_whose_terminal_is_closed_ends_as_after_ctrl_c(make_study, tutti_command, tmp_path):
    study = make_study(tmp_path, training__num_train_epochs=20, search__trials=1)
    running = tutti_command("tune", study.file)
    running.wait_for(lambda: max(study.resume_epochs("t0000"), default=0) >= 2, what="a trial under way")
    for _ in ("the shell", "the kernel"):
        os.killpg(running.process.pid, signal.SIGHUP)
        time.sleep(0.1)
    assert running.wait() == 130, running.output
    assert "1 trial cut off" in running.output
    assert "Traceback" not in running.output
    assert running.left_behind() == []
    assert {key: run.info.status for key, run in study.runs().items()} == {"": "KILLED", "t0000": "KILLED"}


@pytest.mark.strain
def test_a_study_whose_ray_is_lost_before_its_first_trial_does_not_wait_for_it(make_study, tutti_command, tmp_path):
    study = make_study(tmp_path, search__trials=1)
    running = tutti_command("tune", study.file)
    running.wait_for(lambda: running.descendants("ray::PoolHost"), what="the study's first actors")
    [raylet] = running.descendants(str(Path(ray.__file__).parent / "core/src/ray/raylet/raylet"))
    raylet.kill()
    assert running.wait(seconds=200) == 1, running.output
    assert "error: the Ray of this command must stay up until it ends" in running.output
    assert "Traceback" not in running.output
    assert running.left_behind() == []
    assert tutti_command("tune", study.file, "--resume").wait() == 0
    assert [record.state for record in study.records()] == [TrialState.FINISHED]
