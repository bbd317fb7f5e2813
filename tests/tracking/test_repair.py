"""A study's runs in MLflow are compared with its trials, and what differs is repaired."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from tutti.config.folder import StudyFolder
from tutti.records import Finding, Repair, TrialRecord, TrialState
from tutti.tracking.mlflow_tracker import PARENT
from tutti.tracking.repair import run_findings
from tutti.tracking.store import experiment_id

NONE = {"parameters": {}, "tags": {}}


@pytest.fixture
def client(uri) -> MlflowClient:
    return MlflowClient(tracking_uri=uri)


@pytest.fixture
def mend(tracker, uri, tmp_path):
    """Repairs what is found with the runs of these trials; the findings. Then nothing more is found."""

    def find(trials: Sequence[TrialRecord]) -> list[Finding]:
        folder = StudyFolder(tmp_path / "study")
        findings = run_findings(uri, experiment="s", folder=folder, trials=trials, complete=False)
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


def test_a_run_that_is_created_again_has_all_that_the_database_has_of_the_trial(mend, run_of, client, tmp_path):
    StudyFolder(tmp_path / "study").trial("t0").fold(0).path.mkdir(parents=True)
    exchange = {"donor": "t7", "epoch": 1, "parameters": {}}
    assert mend(_ended(seconds=60.0, measured={"disk": 5.0}, exchanges=(exchange,))) == ["it has no run"]
    run = run_of("t0")
    scores = {"validation_score": 0.8, "score": 0.8, "score/mood": 0.8}
    assert run.data.metrics == {**scores, "seconds": 60.0, "disk": 5.0}
    points = client.get_metric_history(run.info.run_id, "validation_score")
    assert [(point.step, point.value) for point in points] == [(1, 0.5), (2, 0.8)]
    assert run.data.tags["tutti.exploited_from"] == "t7 after epoch 1"
    assert run.data.tags["tutti.checkpoint"] == str(tmp_path / "study" / "trials" / "t0")


def test_an_interrupted_trial_without_a_run_gets_one_once_it_has_a_score(mend, run_of):
    assert mend(TrialRecord("t0", 0, TrialState.INTERRUPTED)) == []
    assert mend(_ended(TrialState.INTERRUPTED)) == ["it has no run"]
    run = run_of("t0")
    assert (run.info.status, run.data.tags["tutti.reason"]) == ("KILLED", "the study was interrupted")


def test_a_deleted_run_is_restored_with_the_deleted_runs_of_its_own_folds(mend, tracker, client, uri):
    runs = {key: _track(tracker, key) for key in ("t0", "t0/fold-0", "t0/fold-1")}
    lost, later = "0" * 32, 2**42  # a parent that is gone, and a time after all others

    def another(key: str, parent: str) -> str:
        tags = {"tutti.trial": key, "tutti.state": "finished", PARENT: parent}
        run_id = client.create_run(experiment_id(uri, "s"), later, tags).info.run_id
        client.set_terminated(run_id, "FINISHED", later)
        return str(run_id)

    others = {another("t0", lost), another("t0/fold-0", lost)}
    another("t0/fold-1", runs["t0"])  # is not deleted, and stands for the first one
    for run_id in (*runs.values(), *others):
        client.delete_run(run_id)
    assert mend(_ended()) == ["it was deleted, and the study has its trial"]
    deleted = client.search_runs([experiment_id(uri, "s")], run_view_type=ViewType.DELETED_ONLY)
    assert {run.info.run_id for run in deleted} == others | {runs["t0/fold-1"]}


def test_of_two_runs_of_a_key_the_one_below_the_study_s_run_stays(mend, tracker, client, uri, run_of):
    older = client.create_run(experiment_id(uri, "s"), 0, {"tutti.trial": "t0", PARENT: "0" * 32}).info.run_id
    younger = _track(tracker, "t0")
    assert older != younger
    assert mend(_ended()) == ["another run has the same key"]
    assert run_of("t0").info.run_id == younger


@pytest.mark.parametrize("status", ["KILLED", "FAILED", "FINISHED"])
def test_an_interrupted_trial_s_run_may_have_ended_in_any_way(mend, tracker, client, status):
    client.set_terminated(_track(tracker, "t0", TrialState.INTERRUPTED), status)
    assert mend(_ended(TrialState.INTERRUPTED)) == []


@pytest.mark.parametrize("change", ["MLflow's status", "the state"])
def test_a_run_with_another_end_than_its_trial_gets_that_of_the_trial(mend, tracker, client, run_of, change):
    run_id = _track(tracker, "t0")
    if change == "the state":
        client.set_tag(run_id, "tutti.state", "stopped early")
    else:
        client.set_terminated(run_id, "FAILED")
    [found] = mend(_ended())
    assert found.endswith("and its trial is finished")
    run = run_of("t0")
    assert (run.info.status, run.data.tags["tutti.state"], run.data.metrics["score"]) == ("FINISHED", "finished", 0.8)


def test_a_fold_s_run_that_is_still_running_ends_as_its_trial_did_without_the_trial_s_scores(mend, tracker, run_of):
    _track(tracker, "t0", TrialState.STOPPED)
    _track(tracker, "t0/fold-0")  # folds that ended before have ends of their own
    tracker.start_trial("t0/fold-1", number=0, **NONE)
    [found] = mend(_ended(TrialState.STOPPED))
    assert found == "it says running, and its trial is stopped early"
    assert run_of("t0/fold-0").data.tags["tutti.state"] == "finished"
    fold = run_of("t0/fold-1")
    assert (fold.info.status, fold.data.tags["tutti.state"], fold.data.metrics) == ("FINISHED", "stopped early", {})


def test_the_run_of_a_trial_that_the_database_has_lost_is_kept_as_long_as_its_folder_is(tracker, run_of, uri, tmp_path):
    folder = StudyFolder(tmp_path / "study")
    place = {"tutti.checkpoint": str(folder.trial("t7").best)}
    tracker.start_trial("t7", number=7, parameters={}, tags=place)
    folder.trial("t7").path.mkdir(parents=True)

    def found() -> list[Finding]:
        findings = run_findings(uri, experiment="s", folder=folder, trials=[], complete=False)
        return [finding for finding in findings if "t7" in finding.what]

    [finding] = found()
    assert "restore the database" in str(finding.remedy)
    folder.trial("t7").path.rmdir()
    [finding] = found()
    assert isinstance(finding.remedy, Repair)
