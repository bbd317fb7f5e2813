"""MLflow's real server shows a study, and an outage of it loses nothing."""

from __future__ import annotations

import socket
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from unittest.mock import Mock

import pytest
import requests
from mlflow import MlflowClient
from mlflow import cli as mlflow_cli

from tutti.errors import TrackingError, UserError
from tutti.records import TrialState
from tutti.tracking import server
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.tracking.queued import QueuedTracker
from tutti.tracking.server import start_ui, stop_ui
from tutti.tracking.spool import Spool
from tutti.tracking.store import experiment_id

NONE = {"parameters": {}, "tags": {}}
PNG = b"\x89PNG\r\n\x1a\n of sorts"


@pytest.mark.slow
def test_the_server_shows_the_runs_and_the_pictures_of_a_local_study(uri, tmp_path, monkeypatch):
    for name, value in {"STATIC_PREFIX": "/team", "SERVER_ALLOWED_HOSTS": "a.example", "ARTIFACTS_ONLY": "1"}.items():
        monkeypatch.setenv(f"MLFLOW_{name}", value)  # of another server
    tracker = MlflowTracker(uri, experiment="s", artifact_location=str(tmp_path / "artifacts"))
    tracker.start_study(**NONE, files=[])
    tracker.start_trial("t0000", number=0, parameters={"lr": 0.1}, tags={})
    tracker.log_picture("t0000", "confusion", PNG)
    process, url = start_ui(uri, tmp_path / "artifacts")
    try:
        number = experiment_id(url, "s")
        search = {"experiment_ids": [number], "filter": "tags.`tutti.trial` = 't0000'"}
        found = requests.post(f"{url}/api/2.0/mlflow/runs/search", json=search, timeout=30).json()["runs"]
        assert [run["info"]["run_name"] for run in found] == ["t0000"]
        place = {"run_uuid": found[0]["info"]["run_id"], "path": "pictures/confusion.png"}
        assert requests.get(f"{url}/get-artifact", params=place, timeout=30).content == PNG
        assert "<html" in requests.get(url, timeout=30).text
    finally:
        stop_ui(process)
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(url, timeout=5)
    stop_ui(process)


def test_no_variable_gives_the_server_an_option_of_another_one():
    assert {option.envvar for option in mlflow_cli.server.params if option.envvar} == server.OPTIONS


@pytest.mark.slow
def test_a_server_that_cannot_start_says_why_and_leaves_nothing(uri, tmp_path):
    with pytest.raises(TrackingError, match="answer; got"):
        start_ui("nosuch://store", tmp_path)


def test_a_port_in_use_is_refused_before_another_server_answers_there(uri, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 must be free; got Address already in use"):
            start_ui(uri, tmp_path, port=port)


def test_a_server_of_this_machine_is_asked_without_the_proxy_of_the_environment(monkeypatch):
    asked = []

    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr(server, "_PATIENCE", 3.0)
    healthy = HTTPServer(("127.0.0.1", 0), Healthy)
    Thread(target=healthy.serve_forever, daemon=True).start()
    try:
        server._wait_until_up(Mock(poll=lambda: None), f"http://127.0.0.1:{healthy.server_port}")
    finally:
        healthy.shutdown()
    assert asked == ["/health"]


@pytest.mark.slow
def test_a_server_that_goes_away_and_comes_back_gets_everything_once_and_in_order(uri, tmp_path):
    process, url = start_ui(uri, tmp_path / "artifacts")
    queue = QueuedTracker(lambda: MlflowTracker(url, experiment="s"), spool=tmp_path / "spool.jsonl")
    queue.start()
    try:
        queue.start_study(**NONE, files=[])
        queue.start_trial("t0000", number=0, **NONE)
        for step in range(300):
            queue.log_metrics("t0000", {"loss": step / 2}, step=step, at=1000.0 + step)
            if step == 100:  # during the delivery
                stop_ui(process)
            time.sleep(0.005)
        queue.log_picture("t0000", "confusion", PNG)
        queue.end_trial("t0000", state=TrialState.FINISHED, reason=None, metrics={"score": 0.5}, tags={})
        assert Spool(tmp_path / "spool.jsonl").pending() > 0
        process, _ = start_ui(uri, tmp_path / "artifacts", port=int(url.rpartition(":")[2]))
        assert queue.close(120) == 0
    finally:
        stop_ui(process)
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([experiment_id(uri, "s")], "tags.`tutti.trial` = 't0000'")
    assert [run.info.status for run in runs] == ["FINISHED"]
    points = client.get_metric_history(runs[0].info.run_id, "loss")
    assert sorted((point.step, point.value, point.timestamp) for point in points) == [
        (step, step / 2, (1000 + step) * 1000) for step in range(300)
    ]
    assert runs[0].data.metrics["score"] == 0.5
