"""Trials found by a filter."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient

from tutti.errors import StudyError, TrackingError
from tutti.tracking.artifacts import StudyRun
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.tracking.protocol import RefusedError
from tutti.tracking.run_filter import check_filter, find_trials
from tutti.tracking.store import experiment_id

NONE = {"parameters": {}, "tags": {}}


def test_trials_are_found_by_a_users_tag_and_by_parameter_but_no_fold_and_no_deleted_run(uri):
    tracker = MlflowTracker(uri, experiment="s")
    tracker.start_study(**NONE, files=[])
    for number, pooling in enumerate(["mean", "cls", "mean", "mean"]):
        tracker.start_trial(f"t{number}", number=number, parameters={"pooling": pooling}, tags={})
    tracker.start_trial("t0/fold-0", number=0, parameters={"pooling": "mean"}, tags={})
    client = MlflowClient(tracking_uri=uri)
    runs = {run.data.tags.get("tutti.trial"): run for run in client.search_runs([experiment_id(uri, "s")])}
    client.set_tag(runs["t1"].info.run_id, "vote", "yes")
    client.delete_run(runs["t3"].info.run_id)

    def found(wanted: str) -> set[str]:
        return find_trials(uri, experiment="s", wanted=wanted, what="the recipe")

    assert found("tags.vote = 'yes'") == {"t1"}
    assert found("params.pooling = 'mean'") == {"t0", "t2"}
    assert found("tags.vote = 'no'") == set()
    with pytest.raises(StudyError, match="the recipe must be a filter that MLflow understands"):
        found("params.pooling ~ 'mean'")  # an error that only the store detects


def test_of_studies_of_one_name_the_owner_s_trials_are_found_and_its_run_keeps_files(uri, tmp_path):
    for number, owner in enumerate((None, "us", "them")):
        tracker = MlflowTracker(uri, experiment="s", owner=owner, artifact_location=str(tmp_path / "artifacts"))
        tracker.start_study(**NONE, files=[])
        tracker.start_trial(f"t{number}", number=number, parameters={"pooling": "mean"}, tags={})
    for number, owner in enumerate((None, "us", "them")):
        found = find_trials(uri, experiment="s", wanted="params.pooling = 'mean'", what="the recipe", owner=owner)
        assert found == {f"t{number}"}
    (tmp_path / "page.html").touch()
    theirs = StudyRun(uri, experiment="s", owner="them")
    theirs.log_files([tmp_path / "page.html"], place="report")
    theirs.log_metrics({"leaderboard": 0.5}, step=1)
    client = MlflowClient(tracking_uri=uri)
    remaining = [run for run in client.search_runs([experiment_id(uri, "s")]) if run.data.metrics]
    assert [(run.data.tags["tutti.owner"], run.data.tags.get("tutti.study")) for run in remaining] == [("them", "s")]
    assert [file.path for file in client.list_artifacts(remaining[0].info.run_id)] == ["report"]
    with pytest.raises(TrackingError, match="have the study's run"):
        StudyRun(uri, experiment="s", owner="nobody")
    StudyRun(uri, experiment="s", owner=None).log_metrics({"leaderboard": 0.4}, step=1)
    [(unowned, value)] = [
        (run.data.tags.get("tutti.owner"), run.data.metrics["leaderboard"])
        for run in client.search_runs([experiment_id(uri, "s")], "metrics.leaderboard < 0.5")
    ]
    assert (unowned, value) == (None, 0.4)


def test_a_store_of_files_that_cannot_take_them_is_told(uri, tmp_path):
    MlflowTracker(uri, experiment="s", artifact_location="s3://bucket/x").start_study(**NONE, files=[])
    (tmp_path / "page.html").touch()
    with pytest.raises(RefusedError, match=r"report/page\.html must be kept by MLflow"):  # there is no boto3
        StudyRun(uri, experiment="s", owner=None).log_files([tmp_path / "page.html"], place="report")


@pytest.mark.parametrize("wanted", ["tags.vote == yes", "vote", "tags.a = 'b' or tags.c = 'd'"])
def test_a_filter_that_mlflow_does_not_understand_is_refused_without_asking_a_store(wanted):
    with pytest.raises(StudyError, match="the recipe must be a filter that MLflow understands"):
        check_filter(wanted, what="the recipe")
