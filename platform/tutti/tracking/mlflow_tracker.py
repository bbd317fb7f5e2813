"""A tracker over an MLflow store: one experiment for each study."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Unpack

from mlflow import MlflowClient
from mlflow.entities import Experiment, Metric, Param, Run, RunTag
from mlflow.utils import chunk_list

from tutti.errors import Fault, TrackingError
from tutti.launchers import user_name
from tutti.records import Scalar, TrialState
from tutti.tracking.links import run_page, shared_view
from tutti.tracking.protocol import (
    SCORE,
    MetricRow,
    RefusedError,
    StudyStart,
    TrialEnd,
    TrialStart,
    parent_of,
    readable,
)
from tutti.tracking.store import create_whole, store_faults, upload, write_ahead

# MLflow's limits.
_METRICS_PER_REQUEST, _PARAMETERS_PER_REQUEST = 1000, 100
_PARAMETER_CHARACTERS, _TAG_CHARACTERS = 6000, 8000

STATUS = {
    TrialState.FINISHED: "FINISHED",
    TrialState.STOPPED: "FINISHED",
    TrialState.FAILED: "FAILED",
    TrialState.INTERRUPTED: "KILLED",
}
PARENT = "mlflow.parentRunId"
_NOTE = "mlflow.note.content"
_RESUMED, _STARTED_OVER = "tutti.resumed.", "tutti.started_over"
OWNER = "tutti.owner"
STUDY, TRIAL, _NUMBER, STATE, _REASON = "tutti.study", "tutti.trial", "tutti.number", "tutti.state", "tutti.reason"


class MlflowTracker:
    """A Tracker that logs to MLflow, on a server or in a SQL database.

    The runs of a study, its trials and their folds are found by their tags ``tutti.study`` and ``tutti.trial``, so that
    another process can continue them; ``tutti.owner`` distinguishes studies with the same name. MLflow's parameters are
    immutable: if a resumed run has another value, the first one stays, and the new one is stored in the tag
    ``tutti.resumed.NAME``. Points cannot be deleted: if a trial starts over, a step has both values, of which MLflow
    takes the later one for the latest, or the first alone if they are equal; the tag ``tutti.started_over`` says when.

    Args:
        uri: MLflow's tracking URI.
        experiment: the study's name.
        owner: the id that distinguishes the study from others with its name; None if it has no id.
        artifact_location: where a new experiment stores its files: a folder or any URI that MLflow supports; by default
            the server's choice. An existing experiment keeps its location.

    Raises:
        TrackingError: where the store cannot be reached, or the experiment is deleted.
    """

    def __init__(
        self, uri: str, *, experiment: str, owner: str | None = None, artifact_location: str | None = None
    ) -> None:
        # Errors are raised as exceptions anyway; these loggers add tracebacks, and each migration of a new database.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # it would print two lines per trial
        self._uri = uri
        self._name, self._owner = experiment, owner
        self._runs: dict[str, str] = {}
        self._points: dict[str, dict[str, dict[int, Metric]]] = {}  # the latest by run, metric and step; no ended runs
        self._started_over: dict[str, int] = {}  # milliseconds, by run
        with self._faults():
            create_whole(uri)
            self._client = MlflowClient(tracking_uri=uri)
            self._experiment_id = self._open_experiment(artifact_location)
            write_ahead(uri)

    def start_study(self, **start: Unpack[StudyStart]) -> None:
        with self._faults():
            run_id = self._start("", self._name, {STUDY: self._name}, start)
            view = shared_view(
                first=[f"tags.{STATE}", f"metrics.{SCORE}"], then=start.get("columns", ()), last=[f"tags.{_REASON}"]
            )
            page = run_page(self._experiment_id, run_id)
            note = (
                f"[The study {self._name}]({page}): its file, data, split and environment. Below, its trials: {SCORE} "
                f"is that of a trial's best epoch, {STATE} says what became of it."
            )
            for tag, value in (view, (_NOTE, note)):
                self._client.set_experiment_tag(self._experiment_id, tag, value)
        for file in start["files"]:
            self._upload(run_id, file, "study")

    def start_trial(self, key: str, **start: Unpack[TrialStart]) -> None:
        with self._faults():
            identity = {PARENT: self.run_of(parent_of(key)), TRIAL: key, _NUMBER: str(start["number"])}
            self._start(key, key, identity, start)

    def log_metrics(self, key: str, metrics: Mapping[str, float], *, step: int, at: float) -> None:
        self.log_history(key, [MetricRow(metrics, step, at)])

    def log_history(self, key: str, rows: Sequence[MetricRow]) -> None:
        with self._faults():
            run_id = self.run_of(key)
            points: dict[tuple[str, int], Metric] = {}
            for row in rows:
                for name, value in row.metrics.items():
                    point = Metric(name, readable(value), _milliseconds(row.at), row.step)
                    if self._counts(run_id, point):
                        points.setdefault((name, row.step), point)
            self._log(run_id, [*points.values()])

    def start_over(self, key: str, *, at: float) -> None:
        with self._faults():
            run_id, milliseconds = self.run_of(key), _milliseconds(at)
            if milliseconds > self._started_over[run_id]:
                moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
                self._tag(run_id, {_STARTED_OVER: moment.isoformat(timespec="milliseconds")})
                self._started_over[run_id] = milliseconds

    def log_picture(self, key: str, name: str, png: bytes) -> None:
        with self._faults():
            run_id = self.run_of(key)
        artifact = PurePosixPath("pictures", f"{name}.png")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, artifact.name)
            file.write_bytes(png)
            self._upload(run_id, file, str(artifact.parent))

    def end_trial(self, key: str, **end: Unpack[TrialEnd]) -> None:
        metrics, state, reason = end["metrics"], end["state"], end["reason"]
        ended = _milliseconds(end.get("at"))
        with self._faults():
            run_id = self.run_of(key)
            points = []
            for name, exact in metrics.items():
                value = readable(exact)
                history = self._client.get_metric_history(run_id, name)
                point = Metric(name, value, ended, len(history))
                is_last = bool(history) and max(history, key=lambda metric: metric.step).value == value
                is_logged = any((each.value, each.timestamp) == (point.value, ended) for each in history)
                if not (is_last or is_logged):  # an end may be delivered twice, also after a later one
                    points.append(point)
            self._log(run_id, points)
            self._tag(run_id, {**end["tags"], STATE: state.value} | ({_REASON: reason} if reason else {}))
            if "seconds" in metrics:  # the run began when the trial was submitted, and may have been cut off since
                ended = self._client.get_run(run_id).info.start_time + round(1000 * metrics["seconds"])
            self._client.set_terminated(run_id, STATUS[state], ended)  # MLflow shows no other duration
        self._points.pop(run_id, None)

    def end_study(self, *, state: TrialState, metrics: Mapping[str, float], at: float | None = None) -> None:
        self.end_trial("", state=state, reason=None, metrics=metrics, tags={}, at=at)

    def close(self, timeout: float = 30.0) -> int:
        return 0

    def _open_experiment(self, artifact_location: str | None) -> str:
        experiment: Experiment | None = self._client.get_experiment_by_name(self._name)
        if experiment is None:
            tags = {
                "mlflow.experimentKind": "custom_model_development",  # its page opens on runs, not on traces
                "mlflow.experiment.primaryMetric.name": SCORE,
                "mlflow.experiment.primaryMetric.greaterIsBetter": "True",
            }
            return self._client.create_experiment(self._name, artifact_location, tags)
        if experiment.lifecycle_stage == "deleted":
            restore = f"restore it (`mlflow experiments restore -x {experiment.experiment_id}`)"
            remedy = f"{restore} or name the study otherwise"
            raise TrackingError(Fault(f"the MLflow experiment {self._name!r}", "be active", "a deleted one", remedy))
        return experiment.experiment_id

    def _start(self, key: str, title: str, identity: Mapping[str, str], start: StudyStart | TrialStart) -> str:
        """Reopens or creates a run, and returns its id. ``identity`` are the tags by which it is found."""
        run = self._find(key)
        values = {
            parameter: _truncated(readable(value) if key and isinstance(value, float) else value, _PARAMETER_CHARACTERS)
            for parameter, value in start["parameters"].items()  # the study's are those of its file, to the last digit
        }
        if run is None:
            first_tags = {"mlflow.user": user_name(), **identity, STATE: TrialState.RUNNING.value}
            first_tags |= {OWNER: self._owner} if self._owner else {}
            run = self._client.create_run(self._experiment_id, _milliseconds(start.get("at")), first_tags, title)
            logged: Mapping[str, str] = {}
        else:
            logged = run.data.params
            if run.info.status != "RUNNING":
                self._client.update_run(run.info.run_id, "RUNNING")
            if _REASON in run.data.tags:
                self._client.delete_tag(run.info.run_id, _REASON)
        run_id = self._know(key, run)
        new = [Param(parameter, value) for parameter, value in values.items() if parameter not in logged]
        for chunk in chunk_list(new, _PARAMETERS_PER_REQUEST):
            self._client.log_batch(run_id, params=chunk)
        changed = {
            f"{_RESUMED}{parameter}": value
            for parameter, value in values.items()
            if logged.get(parameter, value) != value or (run is not None and f"{_RESUMED}{parameter}" in run.data.tags)
        }
        self._tag(run_id, {**identity, **changed, **start["tags"], STATE: TrialState.RUNNING.value})
        return run_id

    def _find(self, key: str) -> Run | None:
        if not key:
            runs = study_runs(self._client, self._experiment_id, self._name)
            return next((run for run in runs if is_owned_by(run, self._owner)), None)
        # By its owner, also below an earlier run of the study, which was deleted: it moves below the new one.
        own = f"`{OWNER}` = '{self._owner}'" if self._owner else f"`{PARENT}` = '{self.run_of(parent_of(key))}'"
        query = f"tags.`{TRIAL}` = '{key}' and tags.{own}"
        runs = self._client.search_runs([self._experiment_id], query, max_results=1, order_by=["start_time ASC"])
        return runs[0] if runs else None

    def run_of(self, key: str) -> str:
        """The id of a started run.

        Raises:
            RefusedError: where there is no such run.
        """
        if key not in self._runs:
            run = self._find(key)
            if run is None:
                what = f"the run {key or 'of the study'} in the MLflow experiment {self._name!r}"
                raise RefusedError(Fault(what, "have been started", "none", "start it first"))
            self._know(key, run)
        return self._runs[key]

    def _know(self, key: str, run: Run) -> str:
        """Keeps a run's id, and when it last started over; the id."""
        run_id = self._runs[key] = run.info.run_id
        moment = run.data.tags.get(_STARTED_OVER)
        self._started_over[run_id] = round(datetime.fromisoformat(moment).timestamp() * 1000) if moment else 0
        return run_id

    def _counts(self, run_id: str, point: Metric) -> bool:
        """Whether a point is new: its step has no value, or another one from before the trial started over."""
        known = self._points_of(run_id, point.key).get(point.step)
        if known is None:
            return True
        return known.timestamp < self._started_over[run_id] <= point.timestamp and known.value != point.value

    def _points_of(self, run_id: str, metric: str) -> dict[int, Metric]:
        """The latest point of each step, queried from the store once, since an earlier process may have logged."""
        by_metric = self._points.setdefault(run_id, {})
        if metric not in by_metric:
            history = sorted(self._client.get_metric_history(run_id, metric), key=lambda point: point.timestamp)
            by_metric[metric] = {point.step: point for point in history}
        return by_metric[metric]

    def _log(self, run_id: str, points: Sequence[Metric]) -> None:
        for chunk in chunk_list(points, _METRICS_PER_REQUEST):
            self._client.log_batch(run_id, metrics=chunk)
            for point in chunk:
                self._points.setdefault(run_id, {}).setdefault(point.key, {})[point.step] = point

    def _tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        run_tags = [RunTag(name, _truncated(value, _TAG_CHARACTERS)) for name, value in tags.items()]
        for chunk in chunk_list(run_tags, _PARAMETERS_PER_REQUEST):
            self._client.log_batch(run_id, tags=chunk)

    def _upload(self, run_id: str, file: Path, folder: str) -> None:
        with self._faults():
            upload(self._client, run_id, file, folder)

    def _faults(self) -> AbstractContextManager[None]:
        return store_faults(self._uri)


def study_runs(client: MlflowClient, experiment_id: str, name: str) -> Sequence[Run]:
    """The parent runs of all studies with a name, one for each owner, oldest first."""
    runs: Sequence[Run] = client.search_runs([experiment_id], f"tags.`{STUDY}` = '{name}'", order_by=["start_time ASC"])
    return runs


def is_owned_by(run: Run, owner: str | None) -> bool:
    """Whether a run belongs to the owner's study, including its trials and folds."""
    return bool(run.data.tags.get(OWNER) == owner)


def _milliseconds(at: float | None) -> int:
    return int((time.time() if at is None else at) * 1000)


def _truncated(value: Scalar, limit: int) -> str:
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
