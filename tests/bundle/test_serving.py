"""A bundle as an MLflow model: loaded, registered, and served over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
import requests
from kind_studies import study_with_weights

from tutti.bundle.predict import Bundle

pytestmark = pytest.mark.slow
ROWS = [{"id": str(number), "text": f"text {number} test"} for number in range(5)]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return study_with_weights(tmp_path_factory.mktemp("study"), "classes")


@pytest.fixture(scope="module")
def bundle(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    study.export(folder)
    return folder


@pytest.fixture(scope="module")
def address(bundle):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(bundle), "--env-manager", "local"]
    environment = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}  # noqa: PTH120
    server = subprocess.Popen([*command, "-p", str(port)], start_new_session=True, env=environment)
    try:
        until = time.monotonic() + 200
        while time.monotonic() < until and server.poll() is None:
            try:
                if requests.get(f"http://127.0.0.1:{port}/ping", timeout=5).ok:
                    break
            except requests.RequestException:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def ask(address: str, rows: object) -> requests.Response:
    return requests.post(address, json=rows, timeout=120)


def test_a_served_bundle_answers_with_labels_and_probabilities(bundle, address):
    answer = ask(address, {"dataframe_records": ROWS})
    assert answer.status_code == 200, answer.text
    expected = Bundle(bundle).predict(ROWS)
    found = answer.json()["predictions"]
    assert [row["label"] for row in found] == expected["label"]
    assert [row["p_calm"] for row in found] == pytest.approx(expected["p_calm"].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "rows",
    [{"dataframe_records": [{"body": "text"}]}, {"rows": []}, {"dataframe_records": []}, []],
)
def test_a_served_bundle_refuses_what_it_cannot_read_with_400(address, rows):
    assert ask(address, rows).status_code == 400


def test_a_hundred_requests_at_a_time_are_answered_alike(address):
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda row: ask(address, {"dataframe_records": [row]}), ROWS * 20))
    assert {answer.status_code for answer in answers} == {200}
    by_row = [json.dumps(answer.json()) for answer in answers]
    assert len(set(by_row)) == len(ROWS)


def test_mlflow_loads_a_bundle_whose_predictions_are_its_own(bundle):
    import mlflow

    frame = mlflow.pyfunc.load_model(str(bundle)).predict(pd.DataFrame(ROWS))
    assert frame["label"].tolist() == Bundle(bundle).predict(ROWS)["label"]


def test_a_registered_bundle_is_loaded_by_its_alias(study, tmp_path):
    import mlflow

    from tutti.tracking.mlflow_tracker import MlflowTracker

    folder = study.folder
    tracker = MlflowTracker(
        folder.mlflow_uri,
        experiment=study.name,
        owner=folder.owner,
        artifact_location=folder.mlflow_artifacts.as_uri(),
    )
    tracker.start_study(parameters={}, tags={}, files=[])
    done = study.export(tmp_path / "bundle", register="mood", alias="champion")
    again = study.export(tmp_path / "again", register="mood", alias="champion", members=1)
    assert done.model == again.model == "models:/mood@champion"
    mlflow.set_tracking_uri(folder.mlflow_uri)
    try:
        frame = mlflow.pyfunc.load_model(done.model).predict(pd.DataFrame(ROWS))
        first = mlflow.pyfunc.load_model("models:/mood/1").predict(pd.DataFrame(ROWS))  # as it was registered
    finally:
        mlflow.set_tracking_uri(None)
    assert frame["label"].tolist() == Bundle(tmp_path / "again").predict(ROWS)["label"]
    earlier = Bundle(tmp_path / "bundle").predict(ROWS)
    assert first.filter(like="p_").to_numpy() == pytest.approx(pd.DataFrame(earlier).filter(like="p_").to_numpy())
