"""Files that are made of a study after it has run, kept with its run in MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient

from tutti.errors import Fault, TrackingError
from tutti.tracking.mlflow_tracker import is_of, named_runs
from tutti.tracking.store import experiment_id, store_faults


def keep_files(uri: str, *, experiment: str, files: Sequence[Path], place: str, owner: str | None = None) -> None:
    """Keeps files under ``place`` with the study's run, in the place of earlier ones of the same names.

    Args:
        owner: whose study of that name; by default the first that was tracked.

    Raises:
        TrackingError: where the store cannot be reached, or does not know the study.
    """
    run_id = _study_run(uri, experiment, owner)
    with store_faults(uri):
        client = MlflowClient(tracking_uri=uri)
        for file in files:
            client.log_artifact(run_id, str(file), place)


def keep_metrics(
    uri: str, *, experiment: str, metrics: Mapping[str, float], step: int, owner: str | None = None
) -> None:
    """Keeps metrics of one step with the study's run.

    Args:
        owner: whose study of that name; by default the first that was tracked.

    Raises:
        TrackingError: where the store cannot be reached, or does not know the study.
    """
    run_id = _study_run(uri, experiment, owner)
    with store_faults(uri):
        client = MlflowClient(tracking_uri=uri)
        for name, value in metrics.items():
            client.log_metric(run_id, name, value, step=step)


def _study_run(uri: str, experiment: str, owner: str | None) -> str:
    place = experiment_id(uri, experiment)
    with store_faults(uri):
        found = named_runs(MlflowClient(tracking_uri=uri), place, experiment)
    own = [run for run in found if owner is None or is_of(run, owner)]
    if not own:
        what = f"the MLflow experiment {experiment!r}"
        raise TrackingError(Fault(what, "have the study's run", "none", "run `tutti tune --resume`"))
    run_id: str = own[0].info.run_id
    return run_id
