"""A study's runs in MLflow are compared with its trials, and what differs is repaired."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tutti.config.folder import sqlite_url
from tutti.records import Finding, Repair, TrialRecord, TrialState
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.tracking.protocol import RefusedError
from tutti.tracking.repair import artifact_findings, run_findings
from tutti.tracking.store import experiment_id

NONE = {"parameters": {}, "tags": {}}


@pytest.fixture
def client(uri) -> MlflowClient:
    return MlflowClient(tracking_uri=uri)


@pytest.fixture
def mend(tracker, uri):
    """Repairs what is found with the runs of these trials; the findings. Then nothing more is found."""

    def find(trials: Sequence[TrialRecord]) -> list[Finding]:
        findings = run_findings(uri, experiment="s", owner=None, trials=trials, complete=False)
        return [finding for finding in findings if finding.found != "no process runs the study"]

    def mend(*trials: TrialRecord) -> list[str]:
        findings = find(trials)
        for finding in findings:
            assert isinstance(finding.remedy, Repair)
            finding.remedy.run()
        assert find(trials) == []
        return [finding.found for finding in findings]

    return mend


@pytest.fixture
def run_of(client, uri):
    def run_of(key: str) -> Run:
        [run] = client.search_runs([experiment_id(uri, "s")], f"tags.`tutti.trial` = '{key}'")
        return run

    return run_of


def _ended(state: TrialState = TrialState.FINISHED, **more) -> TrialRecord:
    scores = {"score": 0.8, "task_scores": {"mood": 0.8}, "scores_by_epoch": {1: 0.5, 2: 0.8}}
    return TrialRecord("t0", 0, state, **scores | more)


def _track(tracker, key: str, state: TrialState = TrialState.FINISHED) -> str:
    tracker.start_trial(key, number=0, **NONE)
    tracker.end_trial(key, state=state, reason=None, metrics={}, tags={})
    return tracker.run_of(key)


@pytest.mark.parametrize("status", ["KILLED", "FAILED", "FINISHED"])
def test_an_interrupted_trial_s_run_may_have_ended_in_any_way(mend, tracker, client, status):
    client.set_terminated(_track(tracker, "t0", TrialState.INTERRUPTED), status)
    assert mend(_ended(TrialState.INTERRUPTED)) == []


def test_a_fold_s_run_that_is_still_running_ends_as_its_trial_did_without_the_trial_s_scores(mend, tracker, run_of):
    _track(tracker, "t0", TrialState.STOPPED)
    _track(tracker, "t0/fold-0")  # folds that ended before have ends of their own
    tracker.start_trial("t0/fold-1", number=0, **NONE)
    [found] = mend(_ended(TrialState.STOPPED))
    assert found == "it says running, and its trial is stopped early"
    assert run_of("t0/fold-0").data.tags["tutti.state"] == "finished"
    fold = run_of("t0/fold-1")
    assert (fold.info.status, fold.data.tags["tutti.state"], fold.data.metrics) == ("FINISHED", "stopped early", {})


def test_artifacts_of_a_study_that_was_moved_are_found_again_and_its_old_folder_is_not_made_anew(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new" / "study"
    place = old / "mlflow-artifacts"
    old.mkdir()
    uri = sqlite_url(old / "mlflow.db")
    tracker = MlflowTracker(uri, experiment="s", owner=None, artifact_location=place.as_uri())
    tracker.start_study(parameters={}, tags={}, files=[], columns=[])
    _track(tracker, "t0")
    tracker.log_picture("t0", "kept", b"png")
    new.parent.mkdir()
    old.rename(new)
    uri, place = sqlite_url(new / "mlflow.db"), new / "mlflow-artifacts"
    tracker = MlflowTracker(uri, experiment="s", owner=None)
    with pytest.raises(RefusedError, match="which is gone; run `tutti doctor` on the study"):
        tracker.log_picture("t0", "lost", b"png")
    assert not old.exists()
    [finding] = artifact_findings(uri, place=place)
    assert finding.found == f"its artifacts are recorded in {old / 'mlflow-artifacts'}, which is gone"
    finding.remedy.run()
    assert [*artifact_findings(uri, place=place)] == []
    run = MlflowClient(tracking_uri=uri).get_run(tracker.run_of("t0"))
    recorded = Path(run.info.artifact_uri.removeprefix("file://"))
    assert [file.name for file in (recorded / "pictures").iterdir()] == ["kept.png"]
    assert recorded.is_relative_to(place)


def test_a_copy_of_a_study_stores_nothing_in_the_folder_of_the_first(tmp_path):
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir()
    tracker = MlflowTracker(
        sqlite_url(first / "mlflow.db"), experiment="s", artifact_location=(first / "mlflow-artifacts").as_uri()
    )
    tracker.start_study(parameters={}, tags={}, files=[], columns=[])
    _track(tracker, "t0")
    tracker.log_picture("t0", "kept", b"png")
    shutil.copytree(first, copy)
    uri = sqlite_url(copy / "mlflow.db")
    with pytest.raises(RefusedError, match="first/mlflow-artifacts, which is another study's; run `tutti doctor`"):
        MlflowTracker(uri, experiment="s").log_picture("t0", "strange", b"png")
    assert not [*first.rglob("strange.png")]
    [finding] = artifact_findings(uri, place=copy / "mlflow-artifacts")
    finding.remedy.run()
    client = MlflowClient(tracking_uri=uri)
    assert client.get_run(tracker.run_of("t0")).info.artifact_uri.startswith((copy / "mlflow-artifacts").as_uri())
