"""MLflow stores on disk and on a server. Their tables are created once for all tests, and copied."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tutti.tracking.mlflow_tracker import MlflowTracker


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory) -> Path:
    from mlflow import MlflowClient

    file = tmp_path_factory.mktemp("template") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture(scope="session")
def empty_server_store(postgres) -> str:
    """The address of a database with MLflow's tables, created by a separate process that has ended."""
    address = postgres.new_database()
    script = f"from mlflow import MlflowClient; MlflowClient(tracking_uri={address!r}).search_experiments()"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    return address


@pytest.fixture
def server_uri(postgres, empty_server_store) -> Iterator[str]:
    """The address of an empty MLflow store in a PostgreSQL database."""
    address = postgres.new_database(like=empty_server_store)
    yield address
    postgres.drop(address)  # MLflow keeps its connections open until the process ends


@pytest.fixture
def uri(empty_store, tmp_path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def tracker(uri, tmp_path) -> MlflowTracker:
    """A tracker on a SQLite store, whose study has been started."""
    tracker = MlflowTracker(uri, experiment="s", artifact_location=str(tmp_path / "artifacts"))
    tracker.start_study(parameters={}, tags={}, files=[])
    return tracker
