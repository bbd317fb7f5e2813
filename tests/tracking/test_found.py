"""Which trials a filter finds."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient

from tutti.errors import StudyError
from tutti.tracking.found import check_filter, trials_found
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.tracking.store import experiment_id

NONE = {"parameters": {}, "tags": {}}


def test_trials_are_found_by_a_users_tag_by_parameter_and_by_metric_but_no_fold_and_no_deleted_run(uri):
    tracker = MlflowTracker(uri, experiment="s")
    tracker.start_study(**NONE, files=[])
    for number, pooling in enumerate(["mean", "cls", "mean", "mean"]):
        tracker.start_trial(f"t{number}", number=number, parameters={"pooling": pooling}, tags={})
        tracker.log_metrics(f"t{number}", {"score": number / 10}, step=1, at=0.0)
    tracker.start_trial("t0/fold-0", number=0, parameters={"pooling": "mean"}, tags={})
    client = MlflowClient(tracking_uri=uri)
    runs = {run.data.tags.get("tutti.trial"): run for run in client.search_runs([experiment_id(uri, "s")])}
    client.set_tag(runs["t1"].info.run_id, "vote", "yes")
    client.delete_run(runs["t3"].info.run_id)

    def found(wanted: str) -> set[str]:
        return trials_found(uri, experiment="s", wanted=wanted, what="the recipe")

    assert found("tags.vote = 'yes'") == {"t1"}
    assert found("params.pooling = 'mean'") == {"t0", "t2"}
    assert found("params.pooling = 'mean' and metrics.score > 0.1") == {"t2"}
    assert found("tags.vote = 'no'") == set()
    with pytest.raises(StudyError, match="the recipe must be a filter that MLflow understands"):
        found("params.pooling ~ 'mean'")  # what only the store sees


@pytest.mark.parametrize("wanted", ["tags.vote == yes", "vote", "tags.a = 'b' or tags.c = 'd'"])
def test_a_filter_that_mlflow_does_not_understand_is_refused_without_asking_a_store(wanted):
    with pytest.raises(StudyError, match="the recipe must be a filter that MLflow understands"):
        check_filter(wanted, what="the recipe")
