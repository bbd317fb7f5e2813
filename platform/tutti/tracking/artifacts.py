"""Adds files and metrics to a study's MLflow run after the study has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient

from tutti.errors import Fault, TrackingError
from tutti.tracking.mlflow_tracker import is_owned_by, study_runs
from tutti.tracking.store import experiment_id, store_faults, upload


def log_files(uri: str, *, experiment: str, files: Sequence[Path], place: str, owner: str | None = None) -> None:
    """Uploads files to the folder ``place`` of the study's run; they replace earlier ones of the same names.

    Args:
        owner: the id of the study among those with its name; by default the first that was tracked.

    Raises:
        TrackingError: where the store cannot be reached, or does not know the study.
    """
    run_id = _study_run(uri, experiment, owner)
    with store_faults(uri):
        client = MlflowClient(tracking_uri=uri)
        for file in files:
            upload(client, run_id, file, place)


def log_metrics(
    uri: str, *, experiment: str, metrics: Mapping[str, float], step: int, owner: str | None = None
) -> None:
    """Logs metrics of one step to the study's run.

    Args:
        owner: the id of the study among those with its name; by default the first that was tracked.

    Raises:
        TrackingError: where the store cannot be reached, or does not know the study.
    """
    run_id = _study_run(uri, experiment, owner)
    with store_faults(uri):
        client = MlflowClient(tracking_uri=uri)
        for name, value in metrics.items():
            client.log_metric(run_id, name, value, step=step)


def _study_run(uri: str, experiment: str, owner: str | None) -> str:
    mlflow_id = experiment_id(uri, experiment)
    with store_faults(uri):
        runs = study_runs(MlflowClient(tracking_uri=uri), mlflow_id, experiment)
    run = next((run for run in runs if owner is None or is_owned_by(run, owner)), None)
    if run is None:
        what = f"the MLflow experiment {experiment!r}"
        raise TrackingError(Fault(what, "have the study's run", "none", "run `tutti tune --resume`"))
    run_id: str = run.info.run_id
    return run_id
