"""Compares a study's runs in MLflow with its trials, and ends those that a killed driver left running."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.utils import get_results_from_paginated_fn
from sqlalchemy.engine import make_url

from tutti.records import Finding, Repair, TrialRecord, TrialState, best_trial
from tutti.tracking.mlflow_tracker import STUDY, TRIAL, MlflowTracker, is_owned_by
from tutti.tracking.protocol import BEST_SCORE, SCORE
from tutti.tracking.store import local_folder, store_faults


def run_findings(
    uri: str, *, experiment: str, owner: str | None, trials: Sequence[TrialRecord], complete: bool
) -> Iterator[Finding]:
    """Findings for runs that are said to be running: the study's, those of trials and of folds.

    Runs that were not created by Tutti, or belong to another owner, are ignored. The store is only written to when a
    finding is repaired.

    Args:
        experiment: the study's name.
        trials: every trial of the study. None is running: interrupted ones have the state INTERRUPTED.
        complete: whether the study has all its trials, and each has ended.

    Raises:
        TrackingError: where the store cannot be reached.
    """
    best, known = best_trial(trials), {trial.key: trial for trial in trials}
    for run in _running(uri, experiment):
        tags = run.data.tags
        if not is_owned_by(run, owner):
            continue
        key, reason, metrics = tags.get(TRIAL, ""), None, dict[str, float]()
        if trial := known.get(key.partition("/")[0]):
            state, found = trial.state, f"it says running, and its trial is {trial.state.value}"
            reason = "the study was interrupted" if state is TrialState.INTERRUPTED else trial.reason
            metrics = _scores(trial) if key == trial.key else {}
        elif not key and tags.get(STUDY) == experiment:
            state = TrialState.FINISHED if complete else TrialState.INTERRUPTED
            found = "no process runs the study"
            metrics = {BEST_SCORE: best.score} if best and best.score is not None else {}
        else:
            continue
        tracker = MlflowTracker(uri, experiment=experiment, owner=owner)
        end = partial(tracker.end_trial, key, state=state, reason=reason, metrics=metrics, tags={})
        what = f"MLflow, run {run.info.run_name} ({run.info.run_id[:8]})"
        yield Finding(what, found, Repair(f"marked as {state.value}", end))


def artifact_findings(uri: str, *, place: Path) -> Iterator[Finding]:
    """A finding where a study's own store has its artifacts in another folder: the study was moved, or is a copy.

    Args:
        uri: of the SQLite file in the study's folder.
        place: the folder of artifacts beside it.

    Raises:
        TrackingError: where the file cannot be read.
    """
    file = make_url(uri).database
    if not file or not place.is_dir():
        return
    with store_faults(uri), closing(sqlite3.connect(f"file:{quote(file)}?mode=ro", uri=True)) as connection:
        recorded = {row[0] for row in connection.execute("SELECT artifact_location FROM experiments")}
    for old in sorted(each for each in recorded if str(each).endswith(f"/{place.name}")):
        folder = local_folder(old)
        if folder is None or folder.resolve() == place.resolve():
            continue
        found = f"its artifacts are recorded in {folder}, " + ("a copy" if folder.is_dir() else "which is gone")
        move = partial(_relocate, uri, old, place.resolve().as_uri())
        yield Finding("MLflow", found, Repair(f"recorded in {place}", move))


def _relocate(uri: str, old: str, new: str) -> None:
    """Replaces the beginning of recorded folders. MLflow has no call for it."""
    below = "substr(artifact_uri, 1, length(?1) + 1) = ?1 || '/'"
    with store_faults(uri), closing(sqlite3.connect(str(make_url(uri).database))) as connection, connection:
        connection.execute("UPDATE experiments SET artifact_location = ? WHERE artifact_location = ?", (new, old))
        set_uri = "UPDATE runs SET artifact_uri = ?2 || substr(artifact_uri, length(?1) + 1)"
        connection.execute(f"{set_uri} WHERE {below}", (old, new))


def _running(uri: str, experiment: str) -> list[Run]:
    """The running runs of an experiment, oldest first."""
    with store_faults(uri):
        client = MlflowClient(tracking_uri=uri)
        stored = client.get_experiment_by_name(experiment)
        if stored is None:
            return []
        search = partial(
            client.search_runs, [stored.experiment_id], "attributes.status = 'RUNNING'", order_by=["start_time ASC"]
        )
        runs: list[Run] = get_results_from_paginated_fn(
            lambda size, token: search(max_results=size, page_token=token), 1000
        )
        return runs


def _scores(trial: TrialRecord) -> dict[str, float]:
    task_scores = {f"{SCORE}/{task}": score for task, score in trial.task_scores.items()}
    return {} if trial.score is None else {SCORE: trial.score, **task_scores}
