"""A tracker over an MLflow store: one experiment for each study."""

from __future__ import annotations

import getpass
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Experiment, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from tutti.errors import Fault, TrackingError
from tutti.records import Scalar, TrialState
from tutti.tracking.links import kept_view, run_page
from tutti.tracking.protocol import SCORE, MetricRow, RefusedError, check_ended, parent_of
from tutti.tracking.store import store_faults

_METRICS, _PARAMETERS, _PARAMETER, _TAG = 1000, 100, 6000, 8000  # MLflow's limits: two by request, two by characters
STATUS = {
    TrialState.FINISHED: "FINISHED",
    TrialState.STOPPED: "FINISHED",
    TrialState.FAILED: "FAILED",
    TrialState.INTERRUPTED: "KILLED",
}
PARENT = "mlflow.parentRunId"
_NOTE = "mlflow.note.content"
OWNER = "tutti.owner"
STUDY, TRIAL, _NUMBER, STATE, _REASON = "tutti.study", "tutti.trial", "tutti.number", "tutti.state", "tutti.reason"


Item = TypeVar("Item")


class MlflowTracker:
    """The Tracker protocol over MLflow: tracking URIs of servers and of SQL databases.

    A study's parent run, a trial's run and a fold's are found by their tags ``tutti.study`` and ``tutti.trial``, so
    that another process goes on in them; another study of that name has another ``tutti.owner``. MLflow's parameters
    never change: where a resumed run has other ones, the first value stays, and the new one is kept in the tag
    ``tutti.resumed.NAME``.

    Args:
        uri: MLflow's tracking URI.
        experiment: the study's name.
        owner: what tells the study from another one of its name; none of one that began without.
        artifact_location: where a new experiment keeps its files: a folder or any URI that MLflow takes; by default
            what the server says. An experiment that is there keeps its own.

    Raises:
        TrackingError: where the store cannot be reached, or the experiment is deleted.
    """

    def __init__(
        self, uri: str, *, experiment: str, owner: str | None = None, artifact_location: str | None = None
    ) -> None:
        # The errors come as exceptions; with them MLflow logs a traceback, and Alembic each step of a new database.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines on stdout for each trial
        self._uri = uri
        self._name, self._owner = experiment, owner
        self._runs: dict[str, str] = {}
        self._steps: dict[tuple[str, str], set[int]] = {}
        with self._faults():
            self._client = MlflowClient(tracking_uri=uri)
            self._experiment_id = self._open_experiment(artifact_location)

    def start_study(
        self,
        *,
        parameters: Mapping[str, Scalar],
        tags: Mapping[str, str],
        files: Sequence[Path],
        columns: Sequence[str] = (),
        at: float | None = None,
    ) -> None:
        with self._faults():
            run_id = self._start("", self._name, {STUDY: self._name}, parameters, tags, at)
            view = kept_view(first=[f"tags.{STATE}", f"metrics.{SCORE}"], then=columns, last=[f"tags.{_REASON}"])
            page = run_page(self._experiment_id, run_id)
            note = (
                f"[The study {self._name}]({page}): its file, data, split and environment. Below, its trials: {SCORE} "
                f"is that of a trial's best epoch, {STATE} says what became of it."
            )
            for tag, value in (view, (_NOTE, note)):
                self._client.set_experiment_tag(self._experiment_id, tag, value)
        for file in files:
            self._upload(run_id, file, "study")

    def start_trial(
        self,
        key: str,
        *,
        number: int,
        parameters: Mapping[str, Scalar],
        tags: Mapping[str, str],
        at: float | None = None,
    ) -> None:
        with self._faults():
            own = {PARENT: self.run_of(parent_of(key)), TRIAL: key, _NUMBER: str(number)}
            self._start(key, key, own, parameters, tags, at)

    def log_metrics(self, key: str, metrics: Mapping[str, float], *, step: int, at: float) -> None:
        self.log_history(key, [MetricRow(metrics, step, at)])

    def log_history(self, key: str, rows: Sequence[MetricRow]) -> None:
        with self._faults():
            run_id = self.run_of(key)
            points: dict[tuple[str, int], Metric] = {}
            for row in rows:
                for name, value in row.metrics.items():
                    if row.step not in self._steps_of(run_id, name):
                        point = Metric(name, float(value), int(row.at * 1000), row.step)
                        points.setdefault((name, row.step), point)
            self._log(run_id, [*points.values()])

    def log_picture(self, key: str, name: str, png: bytes) -> None:
        with self._faults():
            run_id = self.run_of(key)
        place = PurePosixPath("pictures", f"{name}.png")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, place.name)
            file.write_bytes(png)
            self._upload(run_id, file, str(place.parent))

    def end_trial(
        self,
        key: str,
        *,
        state: TrialState,
        reason: str | None,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        at: float | None = None,
    ) -> None:
        check_ended(state)
        ended = _milliseconds(at)
        with self._faults():
            run_id = self.run_of(key)
            points = []
            for name, value in metrics.items():
                history = self._client.get_metric_history(run_id, name)
                if not history or max(history, key=lambda metric: metric.step).value != value:
                    points.append(Metric(name, float(value), ended, len(history)))
            self._log(run_id, points)
            self._tag(run_id, {**tags, STATE: state.value} | ({_REASON: reason} if reason else {}))
            self._client.set_terminated(run_id, STATUS[state], ended)

    def end_study(self, *, state: TrialState, metrics: Mapping[str, float], at: float | None = None) -> None:
        self.end_trial("", state=state, reason=None, metrics=metrics, tags={}, at=at)

    def close(self, timeout: float = 30.0) -> int:
        return 0

    def _open_experiment(self, artifact_location: str | None) -> str:
        kept: Experiment | None = self._client.get_experiment_by_name(self._name)
        if kept is None:
            tags = {
                "mlflow.experimentKind": "custom_model_development",  # opens its runs, not traces of language models
                "mlflow.experiment.primaryMetric.name": SCORE,
                "mlflow.experiment.primaryMetric.greaterIsBetter": "True",
            }
            return self._client.create_experiment(self._name, artifact_location, tags)
        if kept.lifecycle_stage == "deleted":
            remedy = f"restore it (`mlflow experiments restore -x {kept.experiment_id}`) or name the study otherwise"
            raise TrackingError(Fault(f"the MLflow experiment {self._name!r}", "be active", "a deleted one", remedy))
        return kept.experiment_id

    def _start(
        self,
        key: str,
        name: str,
        own: Mapping[str, str],
        parameters: Mapping[str, Scalar],
        tags: Mapping[str, str],
        at: float | None,
    ) -> str:
        """Finds or makes a run, and returns its id. ``own`` are the tags that it is known by."""
        run = self._find(key)
        values = {parameter: _cut(value, _PARAMETER) for parameter, value in parameters.items()}
        if run is None:
            first = {"mlflow.user": _user(), **own, STATE: TrialState.RUNNING.value}
            first |= {OWNER: self._owner} if self._owner else {}
            run = self._client.create_run(self._experiment_id, _milliseconds(at), first, name)
            known: Mapping[str, str] = {}
        else:
            known = run.data.params
            if run.info.status != "RUNNING":
                self._client.update_run(run.info.run_id, "RUNNING")
            if _REASON in run.data.tags:
                self._client.delete_tag(run.info.run_id, _REASON)
        run_id = self._runs[key] = run.info.run_id
        new = [Param(parameter, value) for parameter, value in values.items() if parameter not in known]
        for chunk in _chunks(new, _PARAMETERS):
            self._client.log_batch(run_id, params=chunk)
        changed = {
            f"tutti.resumed.{parameter}": value
            for parameter, value in values.items()
            if known.get(parameter, value) != value
        }
        self._tag(run_id, {**own, **changed, **tags, STATE: TrialState.RUNNING.value})
        return run_id

    def _find(self, key: str) -> Run | None:
        if not key:
            named = named_runs(self._client, self._experiment_id, self._name)
            return next((run for run in named if is_of(run, self._owner)), None)
        wanted = f"tags.`{TRIAL}` = '{key}' and tags.`{PARENT}` = '{self.run_of(parent_of(key))}'"
        found = self._client.search_runs([self._experiment_id], wanted, max_results=1, order_by=["start_time ASC"])
        return found[0] if found else None

    def run_of(self, key: str) -> str:
        """The id of a run that was started.

        Raises:
            RefusedError: where there is none.
        """
        if key not in self._runs:
            run = self._find(key)
            if run is None:
                what = f"the run {key or 'of the study'} in the MLflow experiment {self._name!r}"
                raise RefusedError(Fault(what, "have been started", "none", "start it first"))
            self._runs[key] = run.info.run_id
        return self._runs[key]

    def _steps_of(self, run_id: str, metric: str) -> set[int]:
        """Steps that have a value of this metric; asked of the store once, since another process may have logged."""
        if (run_id, metric) not in self._steps:
            history = self._client.get_metric_history(run_id, metric)
            self._steps[run_id, metric] = {point.step for point in history}
        return self._steps[run_id, metric]

    def _log(self, run_id: str, points: Sequence[Metric]) -> None:
        for chunk in _chunks(points, _METRICS):
            self._client.log_batch(run_id, metrics=chunk)
            for point in chunk:
                self._steps.setdefault((run_id, point.key), set()).add(point.step)

    def _tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        for chunk in _chunks([RunTag(name, _cut(value, _TAG)) for name, value in tags.items()], _PARAMETERS):
            self._client.log_batch(run_id, tags=chunk)

    def _upload(self, run_id: str, file: Path, place: str) -> None:
        with self._faults():
            try:
                self._client.log_artifact(run_id, str(file), place)
            except (MlflowException, OSError):
                raise
            except Exception as error:  # each object store has errors of its own, such as missing credentials
                remedy = "see whether the store of MLflow's artifacts can be written from here"
                raise RefusedError(Fault(f"{place}/{file.name}", "be kept by MLflow", str(error), remedy)) from error

    def _faults(self) -> AbstractContextManager[None]:
        return store_faults(self._uri)


def named_runs(client: MlflowClient, experiment_id: str, name: str) -> Sequence[Run]:
    """The runs of studies of a name, the oldest first: one for each owner."""
    wanted = f"tags.`{STUDY}` = '{name}'"
    found: Sequence[Run] = client.search_runs([experiment_id], wanted, order_by=["start_time ASC"])
    return found


def is_of(run: Run, owner: str | None) -> bool:
    """Whether a run is the owner's study's, or a trial's or fold's of it."""
    return bool(run.data.tags.get(OWNER) == owner)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


def _milliseconds(at: float | None) -> int:
    return int((time.time() if at is None else at) * 1000)


def _cut(value: Scalar, limit: int) -> str:
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
