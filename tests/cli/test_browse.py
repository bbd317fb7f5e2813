"""``tutti trials`` and ``tutti ui`` on a study that was really run."""

from __future__ import annotations

import json
import re
import signal
from contextlib import closing
from datetime import timedelta

import pytest
import requests

from tutti.cli.study import trials, ui
from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study
from tutti.config.study import StudyConfig
from tutti.records import TrialState
from tutti.search.study_store import StudyStore
from tutti.workflows import stores

pytestmark = pytest.mark.ray


def test_trials_are_listed_with_state_score_tasks_parameters_and_duration(finished, tutti):
    output = tutti("trials", finished.study.folder.path)
    for record in finished.study.records():
        line = next(line for line in output.splitlines() if record.key in line)
        assert "finished" in line
        assert f"{record.score:.4f}" in line
        assert all(f"{score:.4f}" in line for score in record.task_scores.values())
        assert f" {record.parameters['learning_rate']:.3g}" in line
        assert str(timedelta(seconds=round(record.seconds))) in line


def test_trials_as_json_are_found_by_the_study_s_name(finished, tutti):
    output = tutti("trials", "tiny", "--json", env={"TUTTI_STUDIES": str(finished.study.folder.path.parent)})
    listed = json.loads(output)
    assert [(each["key"], each["state"]) for each in listed] == [("t0000", "finished"), ("t0001", "finished")]
    assert [each["score"] for each in listed] == [record.score for record in finished.study.records()]
    assert listed[0]["parameters"].keys() == {"learning_rate"}
    assert listed[0]["task_scores"].keys() == {"mood", "same"}


@pytest.fixture
def unrun(tmp_path, monkeypatch):
    """The study that a command takes for the one it is asked about, and its folder: its trials are made up."""
    task = {"layout": "competition", "train": str(tmp_path / "train.tsv")}
    study = StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"a": task}})
    folder = StudyFolder(tmp_path / "s")
    folder.path.mkdir()
    folder.study_file.write_text(dump_study(study))  # all that is read of it beside its trials: no prepared rows
    monkeypatch.setenv("TUTTI_STUDIES", str(tmp_path))
    return study, folder


def test_the_study_is_given_back_once_its_trials_are_read(unrun, monkeypatch):
    stores.open_store(*unrun).close()
    close, closed = StudyStore.close, []
    monkeypatch.setattr(StudyStore, "close", lambda store: [closed.append(store), close(store)])
    trials("s")
    assert len(closed) == 1


def test_below_the_trials_is_why_some_of_them_failed(unrun, capsys):
    with closing(stores.open_store(*unrun)) as store:
        for reason in ("a [red] flag", "a [red] flag", "no head"):
            store.finish(store.ask().key, state=TrialState.FAILED, reason=reason)
    trials("s")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:-1] == ["t0000, t0001 failed: a [red] flag", "t0002 failed: no head"]


def test_a_study_that_is_not_there_is_told_with_those_that_are(finished, tutti):
    output = tutti("trials", "tinny", env={"TUTTI_STUDIES": str(finished.study.folder.path.parent)}, code=2)
    assert "did you mean 'tiny'?" in output


def test_a_study_that_was_really_run_has_nothing_to_mend(finished, tutti):
    assert tutti("doctor", finished.study.folder.path) == "The study tiny is healthy.\n"


@pytest.mark.slow
def test_the_ui_prints_an_address_that_answers_and_ends_with_ctrl_c(finished, tutti_command, interrupt):
    running = tutti_command("ui", finished.study.folder.path)
    address = running.wait_for(
        lambda: re.search(r"MLflow shows the study at (http://127\.0\.0\.1:\d+)(\S+)", running.output)
    )
    running.wait_for(lambda: "Ctrl-C" in running.output)
    assert "<html" in requests.get(address[1], timeout=30).text
    interrupt(running)
    assert running.wait() == 0
    assert running.left_behind() == []
    assert running.process.returncode != -signal.SIGINT


@pytest.mark.slow
def test_the_ui_leaves_no_server_behind_when_it_is_ended_from_outside(finished, tutti_command):
    running = tutti_command("ui", finished.study.folder.path)
    running.wait_for(lambda: "Ctrl-C" in running.output)
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0
    assert running.left_behind() == []


def test_the_password_of_a_server_is_not_shown(unrun, monkeypatch, capsys):
    monkeypatch.setattr(stores, "tracking_uri", lambda *_: "http://me:secret@mlflow:5000")
    monkeypatch.setattr("tutti.tracking.store.experiment_id", lambda *_: "7")
    ui("s", port=0)
    assert "tracked at http://me@mlflow:5000/" in capsys.readouterr().out.replace("\n", "")
