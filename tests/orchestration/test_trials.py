"""Trials that share their rows, that are stopped early, that fail, and that nobody can watch."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tutti.records import TrialState
from tutti.tracking.protocol import readable
from tutti.tracking.server import start_ui, stop_ui

pytestmark = [pytest.mark.ray, pytest.mark.slow]
GOOD, HOPELESS, BROKEN = 5e-3, 1e-12, 1e38


def history(study, key: str, metric: str) -> dict[int, float]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=study.folder.mlflow_uri)
    points = client.get_metric_history(study.runs()[key].info.run_id, metric)
    return {point.step: point.value for point in points}


@pytest.mark.strain
def test_two_workers_train_as_one_with_their_batches_together(make_study, tutti, tmp_path):
    alike = {"search_space": {}, "search__trials": 1, "training__learning_rate": 2e-3, "training__num_train_epochs": 3}
    alike["training__bf16"] = False  # compared to float32's precision
    one = make_study(tmp_path / "one", **alike)
    two = make_study(tmp_path / "two", **alike, training__per_device_train_batch_size=8, resources__workers=2)
    for study in (one, two):
        tutti("tune", study.file)
    for metric in ("train_loss", "mood/loss", "same/loss"):
        expected = history(one, "t0000", metric)
        assert sorted(expected) == [1, 2, 3]
        assert history(two, "t0000", metric) == pytest.approx(expected, rel=1.1e-3)  # MLflow has four digits
    assert two.records()[0].scores_by_epoch == pytest.approx(one.records()[0].scores_by_epoch, abs=1e-4)
    assert history(one, "t0000", "train_loss")[3] < history(one, "t0000", "train_loss")[1]


def test_hopeless_trials_stop_and_broken_ones_fail(make_study, tutti, cluster, seed_that_gives, tmp_path):
    """Each trial takes every CPU, so that one which kept its workers would keep the next from starting.

    Another Ray runs on the machine meanwhile: what a trial asks of its cluster must not be answered by that one.
    They report twice an epoch, and may be stopped in the middle of one.
    """
    study = make_study(
        tmp_path,
        training__num_train_epochs=6,
        training__evals_per_epoch=2,
        search_space={"learning_rate": {"type": "categorical", "choices": [GOOD, HOPELESS, BROKEN]}},
        search={
            "trials": 3,
            "sampler": "random",
            "scheduler": "asha",
            "grace_epochs": 0.5,
            "seed": seed_that_gives([GOOD, HOPELESS, BROKEN]),
        },
        resources={"workers": 1, "cpus_per_worker": os.cpu_count()},
    )
    output = tutti("tune", study.file)
    good, hopeless, broken = study.records()
    runs = study.runs()
    assert good.state is TrialState.FINISHED
    assert sorted(good.scores_by_epoch) == sorted(history(study, "t0000", "validation_score")) == list(range(1, 13))
    best = max(good.scores_by_epoch, key=lambda each: good.scores_by_epoch[each])
    assert runs["t0000"].data.metrics["best_epoch"] == best / 2
    assert hopeless.state is TrialState.STOPPED
    assert max(hopeless.scores_by_epoch) < 12
    assert hopeless.reason.endswith(f"after epoch {max(hopeless.scores_by_epoch) / 2:g}")
    assert runs["t0001"].data.tags["tutti.state"] == "stopped early"
    assert runs["t0001"].data.tags["tutti.reason"] == hopeless.reason
    assert broken.state is TrialState.FAILED
    assert "step" in broken.reason
    assert "finite" in broken.reason
    assert runs["t0002"].info.status == "FAILED"
    assert runs["t0002"].data.tags["tutti.reason"] == broken.reason
    assert f"t0002 failed: {broken.reason}" in output
    assert "3 of 3 trials done (1 stopped early, 1 failed), 0 running" in output


@pytest.mark.strain
def test_a_tracking_server_that_is_away_costs_nothing_but_the_view(make_study, tutti, free_port, tmp_path):
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    study = make_study(tmp_path, search__trials=1, tracking={"uri": uri})
    output = tutti("tune", study.file)
    assert "events did not reach the tracking store" in output
    assert "--resume" in output
    assert "1 of 1 trial done" in output
    assert [record.state for record in study.records()] == [TrialState.FINISHED]
    server, _ = start_ui(f"sqlite:///{tmp_path / 'server.db'}", tmp_path / "artifacts", port=port)
    try:
        output = tutti("tune", study.file, "--resume")
        runs = study.runs(uri)
    finally:
        stop_ui(server)
    assert "did not reach" not in output
    assert {key: run.info.status for key, run in runs.items()} == {"": "FINISHED", "t0000": "FINISHED"}
    assert runs["t0000"].data.metrics["score"] == readable(study.records()[0].score)


@pytest.mark.strain
def test_a_tracking_server_that_is_back_has_every_metric_once(make_study, tutti_command, free_port, tmp_path):
    from mlflow import MlflowClient

    port, place = free_port(), (f"sqlite:///{tmp_path / 'server.db'}", tmp_path / "artifacts")
    server, uri = start_ui(*place, port=port)
    study = make_study(
        tmp_path, search__trials=8, search__scheduler="none", training__num_train_epochs=60, tracking={"uri": uri}
    )
    try:
        running = tutti_command("tune", study.file)
        running.wait_for(lambda: [record for record in study.records() if len(record.scores_by_epoch) > 5])
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        time.sleep(60)
        assert running.process.poll() is None, "the study was over before the server was back"
        server, _ = start_ui(*place, port=port)
        assert running.wait() == 0, running.output
        assert "did not reach" not in running.output
        runs = study.runs(uri)
        assert {run.info.status for run in runs.values()} == {"FINISHED"}
        for record in study.records():
            points = MlflowClient(tracking_uri=uri).get_metric_history(runs[record.key].info.run_id, "validation_score")
            assert len(record.scores_by_epoch) == 60
            scores = sorted((epoch, readable(score)) for epoch, score in record.scores_by_epoch.items())
            assert sorted((point.step, point.value) for point in points) == scores
    finally:
        stop_ui(server)
