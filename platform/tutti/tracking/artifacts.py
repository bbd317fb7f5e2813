"""Files that are made of a study after it has run, kept with its run in MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient

from tutti.errors import Fault, TrackingError
from tutti.tracking.mlflow_tracker import STUDY
from tutti.tracking.store import experiment_id, store_faults


def keep_files(uri: str, *, experiment: str, files: Sequence[Path], place: str) -> None:
    """Keeps files under ``place`` with the study's run, in the place of earlier ones of the same names.

    Raises:
        TrackingError: where the store cannot be reached, or does not know the study.
    """
    run_id = _study_run(uri, experiment)
    with store_faults(uri):
        client = MlflowClient(tracking_uri=uri)
        for file in files:
            client.log_artifact(run_id, str(file), place)


def keep_metrics(uri: str, *, experiment: str, metrics: Mapping[str, float], step: int) -> None:
    """Keeps metrics of one step with the study's run.

    Raises:
        TrackingError: where the store cannot be reached, or does not know the study.
    """
    run_id = _study_run(uri, experiment)
    with store_faults(uri):
        client = MlflowClient(tracking_uri=uri)
        for name, value in metrics.items():
            client.log_metric(run_id, name, value, step=step)


def _study_run(uri: str, experiment: str) -> str:
    place = experiment_id(uri, experiment)
    with store_faults(uri):
        wanted = f"tags.`{STUDY}` = '{experiment}'"
        found = MlflowClient(tracking_uri=uri).search_runs([place], wanted, max_results=1, order_by=["start_time ASC"])
    if not found:
        what = f"the MLflow experiment {experiment!r}"
        raise TrackingError(Fault(what, "have the study's run", "none", "run `tutti tune --resume`"))
    return found[0].info.run_id
