"""What events of the queue may do, and the files that they name."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest
from memory_tracker import MemoryTracker

from tutti.errors import Fault, TrackingError
from tutti.tracking import queued
from tutti.tracking.queued import QueuedTracker
from tutti.tracking.spool import Spool

NONE = {"parameters": {}, "tags": {}}


class Closable(MemoryTracker):
    closed = 0

    def close(self, timeout: float = 30.0) -> int:
        self.closed += 1
        return super().close(timeout)


def deliver(spool: Path, store: MemoryTracker) -> None:
    queue = QueuedTracker(lambda: store, spool=spool)
    queue.start()
    assert queue.close(10) == 0


@pytest.mark.parametrize("way", ["link", "../home/id_rsa", "absolute"])
def test_an_event_that_was_edited_uploads_nothing_from_outside_of_the_study(tmp_path, way):
    study, outside, store = tmp_path / "study", tmp_path / "home" / "id_rsa", MemoryTracker()
    for file in (outside, study / "study.json"):
        file.parent.mkdir()
        file.write_text("{}")
    (study / "link").symlink_to(outside)
    files = ["study.json", str(outside) if way == "absolute" else way]
    Spool(study / "spool.jsonl").append({"call": "start_study", **NONE, "files": files})
    deliver(study / "spool.jsonl", store)
    assert [*store.runs[""].files] == ["study.json"]


def test_a_file_of_events_that_is_emptied_holds_back_none_that_come_later(tmp_path):
    spool = Spool(tmp_path / "spool.jsonl")
    for step in range(20):
        spool.append({"step": step})
    spool.advance(spool.peek(15)[-1][0])
    (tmp_path / "spool.jsonl").write_text("")
    assert spool.peek(500) == []
    assert not spool.waiting
    for step in range(2):
        spool.append({"step": step})
        (tmp_path / "spool.jsonl").write_text("" if step == 0 else (tmp_path / "spool.jsonl").read_text())
    assert [event for _, event in spool.peek(500)] == [{"step": 1}]


def test_the_tracker_is_closed_once_at_the_end_and_by_no_event(tmp_path, caplog):
    store = Closable()
    for number, call in enumerate(("close", "run_of", "__init__"), start=1):
        Spool(tmp_path / "spool.jsonl").append({"call": call})
        deliver(tmp_path / "spool.jsonl", store)
        assert store.closed == number
        assert f"an event has the unknown call '{call}'" in caplog.text


@pytest.mark.parametrize(
    "event",
    [
        {"key": "t0000"},
        {"call": "start_trial"},
        {"call": "log_metrics"},
        {"call": "log_metrics", "key": "", "metrics": [1], "step": 1, "at": 5.0},
        {"call": [1]},
    ],
)
def test_a_damaged_event_is_skipped_with_one_sentence_and_those_after_it_are_delivered(tmp_path, caplog, event):
    store, spool = MemoryTracker(), Spool(tmp_path / "spool.jsonl")
    spool.append(event)
    spool.append({"call": "start_study", **NONE, "files": []})
    deliver(tmp_path / "spool.jsonl", store)
    assert [*store.runs] == [""]
    [record] = caplog.records
    assert record.getMessage().startswith("Skipped for MLflow: ")
    assert record.exc_info is None


def test_files_of_a_study_in_a_relative_folder_are_found_from_elsewhere(tmp_path, monkeypatch):
    study, store = tmp_path / "study", MemoryTracker()
    study.mkdir()
    monkeypatch.chdir(study)
    Path("study.json").write_text("{}")
    queue = QueuedTracker(MemoryTracker, spool=Path("spool.jsonl"))
    queue.start_study(**NONE, files=[Path("study.json").absolute()])
    queue.close(0)
    monkeypatch.chdir("/")
    deliver(study.rename(tmp_path / "moved") / "spool.jsonl", store)
    assert store.runs[""].files == {"study.json": b"{}"}


def test_an_event_that_a_full_disk_keeps_from_being_delivered_is_delivered_later(tmp_path):
    """Such as a picture, which the tracker writes to a temporary file."""

    class FullOnce(MemoryTracker):
        refusals = 1

        def log_picture(self, key: str, name: str, png: bytes) -> None:
            self.refusals -= 1
            if self.refusals >= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().log_picture(key, name, png)

    store = FullOnce()
    queue = QueuedTracker(lambda: store, spool=tmp_path / "spool.jsonl")
    queue.start_study(**NONE, files=[])
    queue.log_picture("", "overview", b"png")
    queue.start()
    assert queue.close(10) == 0
    assert store.runs[""].pictures == {"overview": b"png"}


def test_events_are_read_a_few_at_a_time(tmp_path):
    spool = Spool(tmp_path / "spool.jsonl")
    for number in range(5):
        spool.append({"number": number})
    seen = []
    while events := spool.peek(2):
        seen.append([event["number"] for _, event in events])
        spool.advance(events[-1][0])
    assert seen == [[0, 1], [2, 3], [4]]


def test_nothing_is_delivered_after_the_end_of_a_queue(tmp_path):
    class Slow(MemoryTracker):
        def log_picture(self, key: str, name: str, png: bytes) -> None:
            time.sleep(0.05)
            super().log_picture(key, name, png)

    store = Slow()
    queue = QueuedTracker(lambda: store, spool=tmp_path / "spool.jsonl")
    queue.start_study(**NONE, files=[])
    for number in range(20):
        queue.log_picture("", f"p{number}", b"png")
    queue.start()
    left = queue.close(0.1)
    time.sleep(0.3)
    assert left > 10
    assert len(store.runs[""].pictures) <= 20 - left + 1  # with the one that was on its way


def test_the_end_of_a_queue_waits_for_no_long_pause_of_a_store_that_was_away(tmp_path, monkeypatch):
    class Away(MemoryTracker):
        attempts = 0

        def start_study(self, **values: Any) -> None:
            self.attempts += 1
            if self.attempts <= 2:
                raise TrackingError(Fault("the store", "be there", "nothing", "wait"))
            super().start_study(**values)

    monkeypatch.setattr(queued, "_FIRST_PAUSE", 20.0)
    monkeypatch.setattr(queued, "_CLOSING_PAUSE", 0.1)
    store = Away()
    queue = QueuedTracker(lambda: store, spool=tmp_path / "spool.jsonl")
    queue.start_study(**NONE, files=[])
    queue.start()
    while not store.attempts:
        time.sleep(0.01)
    assert queue.close(5) == 0
    assert store.attempts == 3
