"""Adds files and metrics to a study's MLflow run after the study has ended."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from tutti.errors import Fault, TrackingError
from tutti.tracking.links import run_page
from tutti.tracking.mlflow_tracker import is_owned_by, study_runs
from tutti.tracking.protocol import readable
from tutti.tracking.store import experiment_id, store_faults, upload


class StudyRun:
    """The MLflow run of a study. All its calls raise TrackingError where the store cannot be reached.

    Args:
        owner: the id of the study among those with its name; None if it has no id.

    Raises:
        TrackingError: also where the store does not know the study.
    """

    def __init__(self, uri: str, *, experiment: str, owner: str | None) -> None:
        self._uri, mlflow_id = uri, experiment_id(uri, experiment)
        with store_faults(uri):
            self._client = MlflowClient(tracking_uri=uri)
            runs = study_runs(self._client, mlflow_id, experiment)
        run = next((run for run in runs if is_owned_by(run, owner)), None)
        if run is None:
            what = f"the MLflow experiment {experiment!r}"
            raise TrackingError(Fault(what, "have the study's run", "none", "run `tutti tune --resume`"))
        self._run_id: str = run.info.run_id
        self._experiment = mlflow_id

    def log_files(self, files: Sequence[Path], *, place: str) -> None:
        """Uploads files to the folder ``place``; they replace earlier ones of the same names."""
        with store_faults(self._uri):
            for file in files:
                upload(self._client, self._run_id, file, place)

    def describe_by(self, file: str, *, what: str) -> None:
        """Makes the run's description a link to one of its files, a path among the run's artifacts."""
        page = f"{run_page(self._experiment, self._run_id)}/artifacts/{file}"
        with store_faults(self._uri):
            self._client.set_tag(self._run_id, "mlflow.note.content", f"[{what}]({page})")

    def register(self, folder: Path, name: str, *, alias: str | None) -> str:
        """Uploads an MLflow model to a new folder below ``bundles/NAME`` and registers it; returns its address.

        Args:
            alias: that its version gets, such as ``champion``; another version loses it.
        """
        with store_faults(self._uri):
            place = f"bundles/{name}/{uuid.uuid4().hex[:8]}"  # earlier versions keep their files
            self._client.log_artifacts(self._run_id, str(folder), place)
            with suppress(MlflowException):  # which it already has
                self._client.create_registered_model(name)
            source = f"{self._client.get_run(self._run_id).info.artifact_uri}/{place}"
            version = self._client.create_model_version(name, source, run_id=self._run_id).version
            if alias:
                self._client.set_registered_model_alias(name, alias, version)
            return f"models:/{name}@{alias}" if alias else f"models:/{name}/{version}"

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        with store_faults(self._uri):
            for name, value in metrics.items():
                self._client.log_metric(self._run_id, name, readable(value), step=step)
