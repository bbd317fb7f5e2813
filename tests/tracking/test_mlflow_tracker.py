"""A study's runs in MLflow, and the errors of its stores."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
import requests
from mlflow import MlflowClient

from tutti.errors import TrackingError
from tutti.records import TrialState
from tutti.tracking.links import VIEW, runs_page
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.tracking.protocol import BEST_SCORE, SCORE, RefusedError
from tutti.tracking.store import experiment_id

NONE = {"parameters": {}, "tags": {}}


@pytest.fixture
def client(uri):
    return MlflowClient(tracking_uri=uri)


def _runs(client, uri):
    return {run.info.run_name: run for run in client.search_runs([experiment_id(uri, "s")])}


def test_trials_lie_below_the_studys_run_under_their_keys(tracker, client, uri):
    tracker.start_trial("t0007", number=7, **NONE)
    runs = _runs(client, uri)
    assert sorted(runs) == ["s", "t0007"]
    assert runs["t0007"].data.tags["mlflow.parentRunId"] == runs["s"].info.run_id
    assert runs["t0007"].data.tags["tutti.number"] == "7"
    assert "mlflow.parentRunId" not in runs["s"].data.tags
    assert runs["s"].data.tags["mlflow.user"] == runs["t0007"].data.tags["mlflow.user"] != ""


def test_mlflows_own_status_follows_the_state(tracker, client, uri):
    for number, state in enumerate([TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED]):
        tracker.start_trial(f"t{number}", number=number, **NONE)
        tracker.end_trial(f"t{number}", state=state, reason=None, metrics={}, tags={})
    statuses = {name: run.info.status for name, run in _runs(client, uri).items()}
    assert statuses == {"s": "RUNNING", "t0": "FINISHED", "t1": "FINISHED", "t2": "FAILED"}
    tracker.start_trial("t2", number=2, **NONE)  # resumed
    assert _runs(client, uri)["t2"].info.status == "RUNNING"


def test_the_experiment_opens_on_its_runs_by_score_with_state_scores_and_parameters_as_columns(tracker, client, uri):
    tracker.start_study(**NONE, files=[], columns=["metrics.score/a", "params.lr"])
    tags = client.get_experiment(experiment_id(uri, "s")).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    view = json.loads(tags[f"mlflow.sharedViewState.{VIEW}"])
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`score`", False)
    state, score, reason = "tags.`tutti.state`", "metrics.`score`", "tags.`tutti.reason`"
    assert view["selectedColumns"] == [state, score, "metrics.`score/a`", "params.`lr`", reason]
    always = ["attributes.`Run Name`", "runDateAndNestInfo"]
    assert view["columnOrder"] == [*always, state, score, "duration", "metrics.`score/a`", "params.`lr`", reason]
    assert view["columnWidths"].keys() == {*always, state, score, "duration"}


def test_the_experiments_note_leads_to_the_studys_run(tracker, client, uri):
    number = experiment_id(uri, "s")
    note = client.get_experiment(number).tags["mlflow.note.content"]
    assert note.startswith(f"[The study s](#/experiments/{number}/runs/{_runs(client, uri)['s'].info.run_id})")


def test_columns_that_mlflow_has_no_room_for_are_left_out_from_the_end(tracker, client, uri):
    columns = [f"params.a_rather_long_parameter_{number:04d}" for number in range(200)]
    tracker.start_study(**NONE, files=[], columns=columns)
    tag = client.get_experiment(experiment_id(uri, "s")).tags[f"mlflow.sharedViewState.{VIEW}"]
    shown = [name for name in json.loads(tag)["selectedColumns"] if name.startswith("params.")]
    assert len(tag) <= 5000
    assert 40 < len(shown) < 200
    assert shown == [f"params.`a_rather_long_parameter_{number:04d}`" for number in range(len(shown))]


def test_the_address_of_the_runs_page_names_the_view_and_the_workflow():
    address = "http://h:5000/#/experiments/3/runs?viewStateShareKey=tutti&workflowType=machine_learning"
    assert runs_page("http://h:5000/", "3") == address


def test_the_studys_run_has_no_score_so_that_it_stands_behind_the_trials(tracker, client, uri):
    for number, score in enumerate([0.5, 0.9]):
        tracker.start_trial(f"t{number}", number=number, **NONE)
        tracker.end_trial(f"t{number}", state=TrialState.FINISHED, reason=None, metrics={SCORE: score}, tags={})
    tracker.end_study(state=TrialState.FINISHED, metrics={BEST_SCORE: 0.9})
    found = client.search_runs([experiment_id(uri, "s")], order_by=["metrics.`score` DESC"])
    assert [run.info.run_name for run in found] == ["t1", "t0", "s"]


def test_numbers_of_a_trial_are_rounded_for_reading(tracker, client, uri):
    tracker.start_trial("t0", number=0, parameters={"lr": 0.0010539635575, "batch": 12345, "pooling": "mean"}, tags={})
    tracker.log_metrics("t0", {"loss": 0.3638901240}, step=1, at=1.0)
    metrics = {SCORE: 0.88928732, "small": 0.00012345678, "parameters": 22_713_216.0}
    tracker.end_trial("t0", state=TrialState.FINISHED, reason=None, metrics=metrics, tags={})
    data = _runs(client, uri)["t0"].data
    assert data.metrics == {"loss": 0.3639, SCORE: 0.8893, "small": 0.0001235, "parameters": 22_713_216.0}
    assert data.params == {"lr": "0.001054", "batch": "12345", "pooling": "mean"}


def test_metrics_are_kept_in_the_order_they_were_logged(tracker, client, uri):
    tracker.start_trial("t0", number=0, **NONE)
    tracker.log_metrics("t0", {"validation_score": 0.5, "b/loss": 1.0, "a/loss": 1.0}, step=1, at=1.0)
    tracker.log_metrics("t0", {"train/loss": 0.5}, step=10, at=1.0)
    assert [*_runs(client, uri)["t0"].data.metrics] == ["validation_score", "b/loss", "a/loss", "train/loss"]


@pytest.mark.parametrize(("status", "error"), [(403, RefusedError), (507, RefusedError), (503, TrackingError)])
def test_an_upload_is_tried_again_while_the_server_is_away_but_not_when_it_refuses(tracker, monkeypatch, status, error):
    def refuse(*_):
        answer = requests.Response()
        answer.status_code = status
        raise requests.HTTPError(f"{status}", response=answer)

    tracker.start_trial("t0", number=0, **NONE)
    monkeypatch.setattr(MlflowClient, "log_artifact", refuse)
    with pytest.raises(TrackingError) as raised:
        tracker.log_picture("t0", "confusion_matrix/mood", b"png")
    assert type(raised.value) is error


def test_long_values_and_many_parameters_are_taken(tracker, client, uri):
    parameters = {f"p{number}": number for number in range(250)} | {"long": "x" * 9000}
    tracker.start_trial("t0", number=0, parameters=parameters, tags={"long": "y" * 9000})
    run = _runs(client, uri)["t0"]
    assert len(run.data.params) == 251
    assert run.data.params["long"] == "x" * 5999 + "…"
    assert run.data.tags["long"] == "y" * 7999 + "…"


def test_a_parameter_that_a_resumed_run_changes_is_kept_beside_the_first(tracker, client, uri):
    for rate in (0.1, 0.2):
        tracker.start_trial("t0", number=0, parameters={"lr": rate}, tags={})
    run = _runs(client, uri)["t0"]
    assert (run.data.params["lr"], run.data.tags["tutti.resumed.lr"]) == ("0.1", "0.2")
    tracker.start_trial("t0", number=0, parameters={"lr": 0.1}, tags={})
    assert _runs(client, uri)["t0"].data.tags["tutti.resumed.lr"] == "0.1"


def test_a_trial_goes_on_in_its_run_after_the_study_s_was_deleted(client, uri, tmp_path):
    parents = []
    for epoch in (1, 2):
        tracker = MlflowTracker(uri, experiment="s", owner="us", artifact_location=str(tmp_path / "artifacts"))
        tracker.start_study(**NONE, files=[])
        tracker.start_trial("t0", number=0, **NONE)
        tracker.log_metrics("t0", {"loss": 1 / epoch}, step=epoch, at=1.0)
        parents.append(tracker.run_of(""))
        client.delete_run(parents[0])
    run = _runs(client, uri)["t0"]
    assert parents[0] != parents[1] == run.data.tags["mlflow.parentRunId"]
    assert [point.step for point in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]


def test_a_run_that_started_over_has_both_values_of_a_step_and_a_tag_with_the_time(tracker, client, uri):
    tracker.start_trial("t0", number=0, **NONE)
    tracker.log_metrics("t0", {"score": 0.5}, step=1, at=100.0)
    tracker.start_over("t0", at=200.5)
    tracker.log_metrics("t0", {"score": 0.4}, step=1, at=200.5)
    run = _runs(client, uri)["t0"]
    history = client.get_metric_history(run.info.run_id, "score")
    assert sorted((point.timestamp, point.step, point.value) for point in history) == [
        (100_000, 1, 0.5),
        (200_500, 1, 0.4),
    ]
    assert run.data.metrics["score"] == 0.4
    assert run.data.tags["tutti.started_over"] == "1970-01-01T00:03:20.500+00:00"


def test_a_score_that_is_no_number_is_kept(tracker, client, uri):
    tracker.start_trial("t0", number=0, **NONE)
    tracker.log_metrics("t0", {"loss": float("nan")}, step=1, at=1.0)
    tracker.log_metrics("t0", {"norm": float("inf")}, step=1, at=1.0)
    assert set(_runs(client, uri)["t0"].data.metrics) == {"loss", "norm"}


def test_a_bad_name_is_refused(tracker):
    tracker.start_trial("t0", number=0, **NONE)
    with pytest.raises(RefusedError):
        tracker.log_metrics("t0", {"what?": 1.0}, step=1, at=1.0)
    with pytest.raises(RefusedError):
        tracker.log_picture("t0", "../../outside", b"")


def test_a_deleted_experiment_is_an_error_that_says_how_to_restore_it(tracker, client, uri):
    number = experiment_id(uri, "s")
    client.delete_experiment(number)
    with pytest.raises(TrackingError, match=f"mlflow experiments restore -x {number}"):
        MlflowTracker(uri, experiment="s")
    client.restore_experiment(number)
    MlflowTracker(uri, experiment="s").start_trial("t0", number=0, **NONE)
    assert sorted(_runs(client, uri)) == ["s", "t0"]


def test_an_experiment_that_is_not_there_is_an_error(uri):
    with pytest.raises(TrackingError, match="'nothing'"):
        experiment_id(uri, "nothing")


def test_a_server_that_is_away_is_an_error_within_seconds():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(TrackingError, match="be reachable; got nothing that answers; check") as caught:
        MlflowTracker(f"http://me:secret@127.0.0.1:{port}", experiment="s")
    assert time.monotonic() - start < 10
    assert not isinstance(caught.value, RefusedError)


def test_whoever_reads_a_sqlite_store_does_not_hold_up_the_study(uri, tmp_path):
    tracker = MlflowTracker(uri, experiment="s")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM runs").fetchall()  # without WAL, a commit waits in vain for its lock
        tracker.start_study(parameters={}, tags={}, files=[])
        assert reader.execute("SELECT * FROM runs").fetchall() == []


@pytest.mark.slow
def test_a_new_store_is_made_without_a_word(tmp_path):
    script = f"""
from tutti.tracking.mlflow_tracker import MlflowTracker
tracker = MlflowTracker("sqlite:///{tmp_path / "new.db"}", experiment="s")
tracker.start_study(parameters={{}}, tags={{}}, files=[])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (ran.stdout, ran.stderr) == ("", "")


@pytest.mark.parametrize("module", ["protocol", "links", "queued", "server"])
def test_the_light_modules_do_not_import_mlflow(module):
    script = f"import sys, tutti.tracking.{module}; assert 'mlflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
