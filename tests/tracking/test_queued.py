"""The queue keeps events while the store is unreachable, over crashes and full disks, and delivers each in order."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from memory_tracker import MemoryTracker

from tutti.errors import Fault, StorageError, TrackingError
from tutti.records import TrialState
from tutti.tracking.queued import QueuedTracker
from tutti.tracking.spool import Spool

NONE = {"parameters": {}, "tags": {}}


class Store(MemoryTracker):
    """A store that can become unreachable, and records the calls that reached it."""

    def __init__(self):
        super().__init__()
        self.away = False
        self.calls: list[str] = []
        self.steps: list[int] = []
        self.uploaded: list[Path] = []

    def start_study(self, **values):
        super().start_study(**values)
        self.uploaded += values["files"]

    def log_history(self, key, rows):
        self._arrive(f"metrics {key}")
        super().log_history(key, rows)
        self.steps += [row.step for row in rows]

    def start_trial(self, key, **values):
        self._arrive(f"start {key}")
        super().start_trial(key, **values)

    def end_trial(self, key, **values):
        self._arrive(f"end {key}")
        super().end_trial(key, **values)

    def _arrive(self, call):
        if self.away:
            raise TrackingError(Fault("the store", "be there", "nothing", "wait"))
        self.calls.append(call)


def _waiting(spool: Path) -> int:
    """Number of events that the next process would find undelivered."""
    return Spool(spool).pending()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def queue(store, tmp_path) -> Iterator[QueuedTracker]:
    queue = QueuedTracker(lambda: store, spool=tmp_path / "spool.jsonl")
    yield queue
    queue.close(5)


def _until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _order(store) -> list[str]:
    """The calls that arrived, in order; metrics that came in several batches count as one."""
    return [call for call, _ in groupby(store.calls)]


def _trial(queue, key, steps=2):
    queue.start_trial(key, number=int(key[1:]), **NONE)
    for step in range(steps):
        queue.log_metrics(key, {"loss": 1.0}, step=step, at=1.0)
    queue.end_trial(key, state=TrialState.FINISHED, reason=None, metrics={}, tags={})


def test_events_arrive_in_order_with_metrics_in_one_batch(queue, store):
    queue.start_study(**NONE, files=[])
    _trial(queue, "t0", steps=50)
    _trial(queue, "t1")
    queue.start()
    assert queue.close(10) == 0
    assert store.calls == [
        "start t0",
        "metrics t0",
        "end t0",
        "start t1",
        "metrics t1",
        "end t1",
    ]
    assert store.steps == [*range(50), 0, 1]


def test_files_are_found_where_the_study_has_moved_to(store, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "study.json").write_text("{}")
    first = QueuedTracker(lambda: store, spool=tmp_path / "here" / "spool.jsonl")
    first.start_study(**NONE, files=[tmp_path / "here" / "study.json"])
    _trial(first, "t0")
    first.close(0)
    (tmp_path / "here").rename(tmp_path / "there")
    second = QueuedTracker(lambda: store, spool=tmp_path / "there" / "spool.jsonl")
    second.start()
    assert second.close(10) == 0
    assert store.uploaded == [tmp_path / "there" / "study.json"]
    assert _order(store) == ["start t0", "metrics t0", "end t0"]


def test_what_happens_while_the_store_is_away_arrives_when_it_is_back(queue, store, caplog, tmp_path):
    caplog.set_level(logging.INFO, logger="tutti.tracking")
    queue.start()
    queue.start_study(**NONE, files=[])
    _trial(queue, "t0")
    _until(lambda: _waiting(tmp_path / "spool.jsonl") == 0)
    store.away = True
    _trial(queue, "t1")
    _until(lambda: "Nothing reaches MLflow" in caplog.text)
    store.away = False
    assert queue.close(10) == 0
    assert _order(store) == ["start t0", "metrics t0", "end t0", "start t1", "metrics t1", "end t1"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_tracker_that_cannot_be_made_is_made_later(store, tmp_path):
    tries = []

    def make():
        tries.append(1)
        if len(tries) == 1:
            raise TrackingError(Fault("the store", "be there", "nothing", "wait"))
        return store

    queue = QueuedTracker(make, spool=tmp_path / "spool.jsonl")
    queue.start()
    queue.start_study(**NONE, files=[])
    _until(lambda: _waiting(tmp_path / "spool.jsonl") == 0)
    assert list(store.runs) == [""]
    queue.close()


def test_a_call_does_not_wait_for_a_store_that_hangs(store, tmp_path):
    hold = threading.Event()
    queue = QueuedTracker(lambda: hold.wait(20) and store, spool=tmp_path / "spool.jsonl")
    queue.start()
    start = time.monotonic()
    queue.start_study(**NONE, files=[])
    _trial(queue, "t0")
    left = queue.close(0.2)
    assert time.monotonic() - start < 2
    assert left == 5
    hold.set()


def test_what_one_process_leaves_the_next_one_delivers_and_only_that(store, tmp_path):
    first = QueuedTracker(lambda: store, spool=tmp_path / "spool.jsonl")
    first.start()
    first.start_study(**NONE, files=[])
    _trial(first, "t0")
    _until(lambda: _waiting(tmp_path / "spool.jsonl") == 0)
    store.away = True
    _trial(first, "t1")
    assert first.close(0.1) == 4
    store.away = False
    second = QueuedTracker(lambda: store, spool=tmp_path / "spool.jsonl")
    assert _waiting(tmp_path / "spool.jsonl") == 4
    second.start()
    assert second.close(10) == 0
    assert _order(store) == ["start t0", "metrics t0", "end t0", "start t1", "metrics t1", "end t1"]


def test_a_killed_process_loses_nothing_but_a_torn_line(store, tmp_path):
    spool = tmp_path / "spool.jsonl"
    script = f"""
import os, signal
from pathlib import Path
from tutti.tracking.queued import QueuedTracker
queue = QueuedTracker(lambda: None, spool=Path({str(spool)!r}))
queue.start_study(parameters={{}}, tags={{}}, files=[])
queue.start_trial("t0", number=0, parameters={{}}, tags={{}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    with spool.open("ab") as file:
        file.write(b'{"call": "log_metr')
    queue = QueuedTracker(lambda: store, spool=spool)
    assert _waiting(spool) == 2
    queue.log_metrics("t0", {"loss": 1.0}, step=1, at=1.0)
    queue.start()
    assert queue.close(10) == 0
    assert store.runs["t0"].metrics == {"loss": {1: 1.0}}


def test_a_position_that_belongs_to_another_file_delivers_everything_again(store, tmp_path):
    for position in ("999999", "3", "not a number"):
        queue = QueuedTracker(lambda: store, spool=tmp_path / position / "spool.jsonl")
        queue.start_study(**NONE, files=[])
        (tmp_path / position / "spool.jsonl.position").write_text(position)
        assert _waiting(tmp_path / position / "spool.jsonl") == 1


def test_lines_of_another_process_do_not_end_the_delivery(queue, store, tmp_path):
    """For example, a second `tutti tune` of a running study is refused only after it has used its tracker."""
    queue.start()
    queue.start_study(**NONE, files=[])
    _until(lambda: "" in store.runs)
    other = Spool(tmp_path / "spool.jsonl")
    for _ in range(3):
        other.append({"call": "log_metrics", "key": "", "metrics": {"theirs": 1.0}, "step": 1, "at": 1.0})
    _trial(queue, "t0")
    _until(lambda: "end t0" in store.calls)
    _trial(queue, "t1")
    assert queue.close(10) == 0
    assert _order(store) == [
        *("metrics ", "start t0", "metrics t0", "end t0"),
        *("start t1", "metrics t1", "end t1"),
    ]


@pytest.mark.parametrize("written", [0, 7, None])
def test_an_interrupt_in_the_midst_of_a_call_costs_that_call_alone(queue, store, tmp_path, monkeypatch, written):
    """Ctrl-C before a line is written, in the middle of it, and right after it."""
    queue.start()
    queue.start_study(**NONE, files=[])
    _until(lambda: "" in store.runs)
    write = os.write

    def interrupted(descriptor, data):
        write(descriptor, data[:written])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tutti.tracking.spool.os.write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.log_metrics("", {"loss": 1.0}, step=1, at=1.0)
    _trial(queue, "t0")
    assert queue.close(10) == 0
    assert _order(store) == ["start t0", "metrics t0", "end t0"]
    assert _waiting(tmp_path / "spool.jsonl") == 0


def test_a_refused_event_is_skipped_with_one_warning(queue, store, caplog):
    queue.start_study(**NONE, files=[])
    queue.log_metrics("nobody", {"loss": 1.0}, step=7, at=1.0)
    queue.log_metrics("", {"fine": 1.0}, step=1, at=1.0)
    queue.log_metrics("", {"loss": "not a number"}, step=2, at=1.0)
    queue.log_metrics("", {"fine": 2.0}, step=3, at=1.0)
    queue.start()
    assert queue.close(10) == 0
    assert store.runs[""].metrics["fine"] == {1: 1.0, 3: 2.0}
    skipped = [record.message for record in caplog.records if record.message.startswith("Skipped")]
    assert [message.split(".")[0] for message in skipped] == [
        "Skipped for MLflow: metrics of step 7 nobody",
        "Skipped for MLflow: metrics of step 2",
    ]


def test_a_line_that_cannot_be_read_is_passed_over(store, tmp_path):
    spool = tmp_path / "spool.jsonl"
    spool.write_bytes(b'not JSON\n[1]\n{}\n{"call": "log_metrics"}\n\xff\n')
    queue = QueuedTracker(lambda: store, spool=spool)
    queue.start_study(**NONE, files=[])
    queue.start()
    assert queue.close(10) == 0
    assert list(store.runs) == [""]


def test_numpy_numbers_and_not_a_number_are_carried(queue, store):
    queue.start_study(parameters={"rate": np.float32(0.5)}, tags={}, files=[])
    queue.log_metrics("", {"loss": np.float64(0.25), "bad": float("nan")}, step=np.int64(3), at=1.0)
    queue.start()
    assert queue.close(10) == 0
    assert store.runs[""].parameters == {"rate": 0.5}
    assert store.runs[""].metrics["loss"] == {3: 0.25}
    assert np.isnan(store.runs[""].metrics["bad"][3])


def test_things_happen_when_they_were_called_not_when_they_were_delivered(queue, store):
    before = time.time()
    queue.start_study(**NONE, files=[])
    queue.start_trial("t0", number=0, **NONE)
    queue.end_trial("t0", state=TrialState.FINISHED, reason=None, metrics={}, tags={})
    queue.end_study(state=TrialState.FINISHED, metrics={})
    after = time.time()
    time.sleep(0.05)
    queue.start()
    assert queue.close(10) == 0
    for run in store.runs.values():
        assert before <= run.started <= run.ended <= after


def test_calls_from_many_threads_all_arrive(queue, store):
    queue.start_study(**NONE, files=[])
    queue.start()
    threads = [
        threading.Thread(
            target=lambda n=n: [queue.log_metrics("", {f"m{n}": 1.0}, step=step, at=1.0) for step in range(100)]
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.close(20) == 0
    assert {name: len(values) for name, values in store.runs[""].metrics.items()} == {f"m{n}": 100 for n in range(4)}


def test_a_full_disk_costs_no_trial_and_no_event_once_there_is_room_and_leaves_a_whole_file(tmp_path):
    spool = tmp_path / "spool.jsonl"
    script = f"""
import logging, resource
from pathlib import Path
from tutti.tracking.queued import QueuedTracker
logging.basicConfig(format="%(message)s")
queue = QueuedTracker(lambda: None, spool=Path({str(spool)!r}))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
for step in range(100):
    queue.log_metrics("t0", {{"loss": 1.0}}, step=step, at=1.0)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
queue.log_metrics("t0", {{"loss": 1.0}}, step=100, at=1.0)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))
    assert ran.returncode == 0
    assert ran.stderr.count("queue cannot be written") == 1
    assert [event["step"] for _, event in Spool(spool).peek(1000)] == [*range(101)]


@pytest.fixture
def full_disk(monkeypatch):
    def refuse(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tutti.tracking.spool.os.write", refuse)
        yield patched


@pytest.mark.parametrize("later", [1, 0])
def test_events_that_a_full_disk_refused_are_written_before_later_ones(queue, store, full_disk, later):
    """With a later event, and without any before the end."""
    queue.start()
    queue.start_study(**NONE, files=[])
    _trial(queue, "t0")
    full_disk.undo()
    keys = ["t0", "t1"][: 1 + later]
    for key in keys[1:]:
        _trial(queue, key)
    assert queue.close(10) == 0
    assert _order(store) == [f"{call} {key}" for key in keys for call in ("start", "metrics", "end")]


def test_what_a_disk_that_stays_full_costs_is_said_at_the_end(queue, full_disk, caplog):
    queue.start()
    _trial(queue, "t0")
    assert queue.close(10) == 0
    assert "MLflow will miss 4 reports: its queue cannot be written" in caplog.text


def test_a_queue_file_that_is_gone_at_the_end_costs_a_warning(queue, store, caplog, tmp_path):
    queue.start()
    (tmp_path / "spool.jsonl").unlink()
    assert queue.close(10) == 0
    assert "its queue cannot be read" in caplog.text


def test_a_queue_file_in_an_impossible_place_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        Spool(tmp_path / "file" / "spool.jsonl")
