"""The contract of all trackers: in memory, MLflow on SQLite and PostgreSQL, and behind the queue."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from memory_tracker import MemoryTracker

from tutti.records import TrialState
from tutti.tracking.protocol import SCORE, MetricRow, RefusedError
from tutti.tracking.queued import QueuedTracker

PNG = b"\x89PNG\r\n\x1a\n of sorts"
NONE = {"parameters": {}, "tags": {}}


@dataclass
class Seen:
    """A run as shown to a user, for any tracker."""

    parameters: dict = field(default_factory=dict)
    tags: dict = field(default_factory=dict)
    metrics: dict = field(default_factory=dict)
    pictures: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    columns: tuple = ()
    state: str = ""
    reason: str | None = None
    times: tuple = ()


class MemoryBackend:
    refuses = True

    def __init__(self):
        self.tracker = MemoryTracker()

    def of_another_owner(self):
        return MemoryBackend()

    def connect(self):
        return self.tracker

    def flush(self):
        pass

    def seen(self) -> dict[str, Seen]:
        return {
            key: Seen(
                parameters={name: str(value) for name, value in run.parameters.items()},
                tags=run.tags,
                metrics={name: sorted(values.items()) for name, values in run.metrics.items()},
                pictures=run.pictures,
                files=run.files,
                columns=run.columns,
                state=run.state.value,
                reason=run.reason,
                times=(run.started, run.ended),
            )
            for key, run in self.tracker.runs.items()
        }


class MlflowBackend:
    refuses = True

    def __init__(self, uri, folder, owner="me"):
        self.uri, self.folder, self.owner = uri, folder, owner

    def of_another_owner(self):
        return MlflowBackend(self.uri, self.folder, "somebody")

    def connect(self):
        from tutti.tracking.mlflow_tracker import MlflowTracker

        place = str(self.folder)
        return MlflowTracker(self.uri, experiment="my-study", owner=self.owner, artifact_location=place)

    def flush(self):
        pass

    def seen(self) -> dict[str, Seen]:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        experiment = client.get_experiment_by_name("my-study")
        runs = client.search_runs([experiment.experiment_id])
        runs = [run for run in runs if run.data.tags["tutti.owner"] == self.owner]
        keys = [run.data.tags.get("tutti.trial", "") for run in runs]
        assert len(set(keys)) == len(keys), "a run stands twice"
        seen = {key: self._one(client, run) for key, run in zip(keys, runs, strict=True)}
        view = json.loads(experiment.tags["mlflow.sharedViewState.tutti"])["selectedColumns"]
        own = view[2:-1]  # without those that are always shown
        seen[""].columns = tuple(column.replace("`", "") for column in own)
        return seen

    def _one(self, client, run) -> Seen:
        def artifacts(place):
            folder = self.folder / run.info.run_id / "artifacts" / place
            return {file.name: file.read_bytes() for file in folder.glob("*")}

        ended = run.info.end_time
        return Seen(
            parameters=run.data.params,
            tags=run.data.tags,
            metrics={
                name: [
                    (point.step, point.value) for point in sorted(history, key=lambda each: (each.step, each.timestamp))
                ]
                for name in run.data.metrics
                for history in [client.get_metric_history(run.info.run_id, name)]
            },
            pictures={name.removesuffix(".png"): png for name, png in artifacts("pictures").items()},
            files=artifacts("study"),
            state=run.data.tags["tutti.state"],
            reason=run.data.tags.get("tutti.reason"),
            times=(run.info.start_time / 1000, None if ended is None else ended / 1000),
        )


class QueuedBackend:
    """Each connection is a new queue on the same file, like that of a new process."""

    refuses = False

    def __init__(self, inner, spool):
        self.inner, self.spool, self.queues = inner, spool, []

    def of_another_owner(self):
        return QueuedBackend(self.inner.of_another_owner(), self.spool.with_name("other.jsonl"))

    def connect(self):
        self.flush()
        self.queues.append(QueuedTracker(self.inner.connect, spool=self.spool))
        self.queues[-1].start()
        return self.queues[-1]

    def flush(self):
        while self.queues:  # a closed queue would count the events of a later one
            assert self.queues.pop().close(60) == 0

    def seen(self):
        self.flush()
        return self.inner.seen()


@pytest.fixture(
    params=[
        *("memory", "mlflow", "queue to memory", "queue to mlflow"),
        pytest.param("mlflow on postgres", marks=pytest.mark.slow),
    ]
)
def backend(request, tmp_path):
    inner = MemoryBackend()
    if "mlflow" in request.param:
        uri = request.getfixturevalue("server_uri" if "postgres" in request.param else "uri")
        inner = MlflowBackend(uri, tmp_path / "artifacts")
    backend = QueuedBackend(inner, tmp_path / "spool.jsonl") if "queue" in request.param else inner
    yield backend
    backend.flush()


@pytest.fixture
def tracker(backend):
    tracker = backend.connect()
    tracker.start_study(**NONE, files=[])
    return tracker


def test_a_whole_study_is_kept(backend, tmp_path):
    (tmp_path / "study.json").write_text("{}")
    tracker = backend.connect()
    files, columns = [tmp_path / "study.json"], ("metrics.score/a", "params.lr")
    tracker.start_study(parameters={"trials": 2}, tags={"host": "here"}, files=files, columns=columns, at=100.0)
    tracker.start_trial("t0000", number=0, parameters={"lr": 0.1, "pooling": None}, tags={"host": "there"}, at=101.0)
    for epoch in (1, 2):
        tracker.log_metrics("t0000", {"a/macro_f1": epoch / 10, "b/accuracy": 0.5}, step=epoch, at=101.0 + epoch)
    tracker.log_picture("t0000", "confusion-a", PNG)
    tracker.end_trial(
        "t0000", state=TrialState.FINISHED, reason=None, metrics={SCORE: 0.35}, tags={"checkpoint": "/x"}, at=104.0
    )
    tracker.end_study(state=TrialState.FINISHED, metrics={SCORE: 0.35}, at=105.0)
    assert tracker.close() == 0
    seen = backend.seen()
    study, trial = seen[""], seen["t0000"]
    assert sorted(seen) == ["", "t0000"]
    assert (study.parameters, study.tags["host"], study.files) == ({"trials": "2"}, "here", {"study.json": b"{}"})
    assert study.columns == columns
    assert (study.metrics, study.state, study.times) == ({SCORE: [(0, 0.35)]}, "finished", (100.0, 105.0))
    assert trial.parameters == {"lr": "0.1", "pooling": "None"}
    assert (trial.tags["host"], trial.tags["checkpoint"]) == ("there", "/x")
    assert trial.metrics == {"a/macro_f1": [(1, 0.1), (2, 0.2)], "b/accuracy": [(1, 0.5), (2, 0.5)], SCORE: [(0, 0.35)]}
    assert trial.pictures == {"confusion-a": PNG}
    assert (trial.state, trial.reason, trial.times) == ("finished", None, (101.0, 104.0))


def test_every_end_is_told_apart_with_its_reason(backend, tracker):
    for number, state in enumerate([TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED]):
        tracker.start_trial(f"t{number}", number=number, **NONE)
        reason = None if number == 0 else f"because {number}"
        tracker.end_trial(f"t{number}", state=state, reason=reason, metrics={}, tags={})
    tracker.start_trial("t3", number=3, **NONE)
    ends = {key: (run.state, run.reason) for key, run in backend.seen().items() if key}
    assert ends == {
        "t0": ("finished", None),
        "t1": ("stopped early", "because 1"),
        "t2": ("failed", "because 2"),
        "t3": ("running", None),
    }


def test_a_resumed_study_goes_on_in_the_same_runs(backend, tracker):
    tracker.start_trial("t0", number=0, parameters={"lr": 0.1}, tags={"host": "a"})
    tracker.log_metrics("t0", {"loss": 1.0}, step=1, at=1.0)
    tracker.end_trial("t0", state=TrialState.FAILED, reason="killed", metrics={}, tags={})
    tracker.end_study(state=TrialState.FAILED, metrics={SCORE: 0.1})
    again = backend.connect()
    again.start_study(**NONE, files=[])
    again.start_trial("t0", number=0, parameters={"lr": 0.1, "new": True}, tags={"host": "b"})
    halfway = {key: (run.state, run.reason) for key, run in backend.seen().items()}
    assert halfway == {"": ("running", None), "t0": ("running", None)}
    last = backend.connect()
    last.log_metrics("t0", {"loss": 0.5}, step=2, at=2.0)
    last.end_trial("t0", state=TrialState.FINISHED, reason=None, metrics={}, tags={})
    last.end_study(state=TrialState.FINISHED, metrics={SCORE: 0.2})
    seen = backend.seen()
    assert seen["t0"].parameters == {"lr": "0.1", "new": "True"}
    assert seen["t0"].metrics == {"loss": [(1, 1.0), (2, 0.5)]}
    assert (seen["t0"].state, seen["t0"].reason, seen["t0"].tags["host"]) == ("finished", None, "b")
    assert seen[""].metrics[SCORE][-1][1] == 0.2


def test_studies_of_one_name_and_two_owners_have_runs_of_their_own(backend, tracker):
    other = backend.of_another_owner()
    for number, one in enumerate((tracker, other.connect())):
        one.start_study(parameters={"seed": number}, tags={}, files=[])
        one.start_trial("t0", number=0, parameters={"lr": number}, tags={})
        one.start_trial("t0/fold-0", number=0, **NONE)
        one.log_metrics("t0", {"loss": 1.0 + number}, step=1, at=1.0)
    again = other.connect()  # like a resumed study
    again.log_metrics("t0/fold-0", {"loss": 5.0}, step=1, at=1.0)
    again.end_trial("t0", state=TrialState.FINISHED, reason=None, metrics={}, tags={})
    mine, theirs = backend.seen(), other.seen()
    assert sorted(mine) == sorted(theirs) == ["", "t0", "t0/fold-0"]
    assert [seen[""].parameters["seed"] for seen in (mine, theirs)] == ["0", "1"]
    assert [seen["t0"].parameters["lr"] for seen in (mine, theirs)] == ["0", "1"]
    assert [seen["t0"].metrics["loss"] for seen in (mine, theirs)] == [[(1, 1.0)], [(1, 2.0)]]
    assert [seen["t0/fold-0"].metrics for seen in (mine, theirs)] == [{}, {"loss": [(1, 5.0)]}]
    assert [seen["t0"].state for seen in (mine, theirs)] == ["running", "finished"]


def test_a_run_below_a_trial_s_is_its_own_and_is_gone_on_with(backend, tracker):
    for number, key in enumerate(("t0", "t1")):
        tracker.start_trial(key, number=number, **NONE)
        tracker.start_trial(f"{key}/fold-0", number=number, parameters={}, tags={"tutti.fold": "0"})
        tracker.log_metrics(f"{key}/fold-0", {"loss": 1.0 + number}, step=1, at=1.0)
    tracker.log_metrics("t0", {"fold_score": 0.5}, step=1, at=2.0)
    tracker.end_trial("t0/fold-0", state=TrialState.FINISHED, reason=None, metrics={"fold_score": 0.5}, tags={})
    again = backend.connect()
    again.start_study(**NONE, files=[])
    again.start_trial("t1", number=1, **NONE)
    again.start_trial("t1/fold-0", number=1, **NONE)
    again.log_metrics("t1/fold-0", {"loss": 0.5}, step=2, at=3.0)
    seen = backend.seen()
    assert sorted(seen) == ["", "t0", "t0/fold-0", "t1", "t1/fold-0"]
    assert seen["t0/fold-0"].metrics == {"loss": [(1, 1.0)], "fold_score": [(0, 0.5)]}
    assert seen["t0"].metrics == {"fold_score": [(1, 0.5)]}
    assert seen["t1/fold-0"].metrics == {"loss": [(1, 2.0), (2, 0.5)]}
    assert seen["t1/fold-0"].tags["tutti.fold"] == "0"
    assert {key: run.state for key, run in seen.items()} == {
        "": "running", "t0": "running", "t0/fold-0": "finished", "t1": "running", "t1/fold-0": "running",
    }  # fmt: skip


def test_a_step_that_was_logged_is_not_logged_twice(backend, tracker):
    tracker.start_trial("t0", number=0, **NONE)
    tracker.log_metrics("t0", {"loss": 1.0}, step=1, at=1.0)
    tracker.log_metrics("t0", {"loss": 9.0, "norm": 2.0}, step=1, at=2.0)
    again = backend.connect()
    again.log_metrics("t0", {"loss": 8.0, "norm": 8.0}, step=1, at=3.0)
    again.log_metrics("t0", {"loss": 0.5}, step=2, at=4.0)
    assert backend.seen()["t0"].metrics == {"loss": [(1, 1.0), (2, 0.5)], "norm": [(1, 2.0)]}


def test_a_trial_that_starts_over_is_shown_with_its_new_values_however_often_all_is_told(backend, tracker):
    def tell(tracker, *, attempt: int, scores: dict[int, float]) -> None:
        if attempt:
            tracker.start_over("t0", at=10.0 * attempt + 1)
        for step, score in scores.items():
            tracker.log_metrics("t0", {"score": score, "rate": 0.5}, step=step, at=10.0 * attempt + step)

    attempts = [{1: 0.5, 2: 0.6, 3: 0.7, 4: 0.1}, {1: 0.4, 4: 0.2}, {1: 0.8, 2: 0.9}]
    tracker.start_trial("t0", number=0, **NONE)
    for attempt, scores in enumerate(attempts):
        tell(tracker, attempt=attempt, scores=scores)
    for _ in range(2):
        again = backend.connect()
        again.start_trial("t0", number=0, **NONE)
        for attempt, scores in enumerate(attempts):
            tell(again, attempt=attempt, scores=scores)
    for step in (1, 2):  # which have values since
        again.log_metrics("t0", {"score": 0.95}, step=step, at=30.0)
    metrics = backend.seen()["t0"].metrics
    assert dict(metrics["score"]) == {1: 0.8, 2: 0.9, 3: 0.7, 4: 0.2}
    assert metrics["rate"] == [(step, 0.5) for step in (1, 2, 3, 4)]
    assert all(len(set(points)) == len(points) for points in metrics.values())


def test_ends_that_are_delivered_again_one_after_another_stand_once_each(backend, tracker):
    tracker.start_trial("t0", number=0, **NONE)
    for _ in range(2):
        for at, score in ((10.0, 0.5), (20.0, 0.7)):
            tracker.end_trial("t0", state=TrialState.FINISHED, reason=None, metrics={SCORE: score}, tags={}, at=at)
    assert backend.seen()["t0"].metrics == {SCORE: [(0, 0.5), (1, 0.7)]}


def test_of_the_values_of_an_end_the_last_one_counts_also_where_it_is_an_earlier_one_s_again(backend, tracker):
    tracker.start_trial("t0", number=0, **NONE)
    for at, score in enumerate((0.5, 0.7, 0.7, 0.5), start=10):
        tracker.end_trial("t0", state=TrialState.FINISHED, reason=None, metrics={SCORE: score}, tags={}, at=at)
    assert backend.seen()["t0"].metrics == {SCORE: [(0, 0.5), (1, 0.7), (2, 0.5)]}


def test_a_long_history_is_kept_whole(backend, tracker):
    tracker.start_trial("t0", number=0, **NONE)
    tracker.log_history("t0", [MetricRow({"loss": step / 2, "rate": 0.1}, step, float(step)) for step in range(1200)])
    metrics = backend.seen()["t0"].metrics
    assert metrics["loss"] == [(step, step / 2) for step in range(1200)]
    assert len(metrics["rate"]) == 1200


def test_the_parent_run_takes_metrics_and_pictures_too(backend, tracker):
    tracker.log_metrics("", {"trials done": 1}, step=1, at=1.0)
    tracker.log_picture("", "overview", PNG)
    assert backend.seen()[""].metrics == {"trials done": [(1, 1.0)]}
    assert backend.seen()[""].pictures == {"overview": PNG}


def test_a_picture_logged_again_takes_the_place_of_the_first(backend, tracker):
    tracker.start_trial("t0", number=0, **NONE)
    for png in (PNG, PNG + b"2"):
        tracker.log_picture("t0", "confusion", png)
    assert backend.seen()["t0"].pictures == {"confusion": PNG + b"2"}


def test_what_is_wrong_is_refused_or_skipped_and_the_rest_is_kept(backend, tracker, tmp_path):
    wrong = [
        lambda: tracker.log_metrics("nobody", {"loss": 1.0}, step=1, at=1.0),
        lambda: tracker.end_trial("nobody", state=TrialState.FAILED, reason=None, metrics={}, tags={}),
        lambda: tracker.log_picture("nobody", "x", PNG),
        lambda: tracker.start_trial("nobody/fold-0", number=0, **NONE),
        lambda: tracker.start_study(**NONE, files=[tmp_path / "gone.json"]),
    ]
    for call in wrong:
        if backend.refuses:
            with pytest.raises(RefusedError):
                call()
        else:
            call()
    tracker.start_trial("t0", number=0, **NONE)
    assert sorted(backend.seen()) == ["", "t0"]
