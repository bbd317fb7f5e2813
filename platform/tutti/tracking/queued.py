"""A tracker that never waits for the store: it writes events to a file, from which a thread delivers them."""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Unpack

from tutti.errors import TrackingError, counted
from tutti.files import is_inside
from tutti.records import TrialState
from tutti.tracking.protocol import MetricRow, RefusedError, StudyStart, Tracker, TrialEnd, TrialStart
from tutti.tracking.spool import Event, Spool

_log = logging.getLogger(__name__)

_BATCH = 500
_CALLS = {"start_study", "start_trial", "start_over", "log_picture", "end_trial", "end_study"}
_FIRST_PAUSE, _LONGEST_PAUSE, _CLOSING_PAUSE = 0.5, 30.0, 1.0  # seconds between two attempts


class QueuedTracker:
    """A Tracker that queues calls for another tracker in a file. Calls return at once and never raise TrackingError.

    Events are delivered in order, metrics in batches. While the store is unreachable they stay in the file, and
    delivery is retried with exponential backoff from 0.5 s to 30 s. Events left over when the process ends, or is
    killed, are delivered first by the next QueuedTracker on the same file. An event that the store refuses permanently
    is skipped with a warning. An event that cannot be written to the file, as on a full disk, stays in memory and is
    written before the next one; it is lost only if the process ends before there is space.

    Args:
        make: creates the tracker to deliver to; called in the delivery thread, and again while it raises TrackingError.
        spool: the file; created where it is missing.

    Raises:
        StorageError: where the file cannot be created or read.
    """

    def __init__(self, make: Callable[[], Tracker], *, spool: Path) -> None:
        self._make = make
        self._tracker: Tracker | None = None
        self._spool, self._folder = Spool(spool), spool.parent
        self._wake = threading.Condition()
        self._closing = self._stopped = False
        self._unwritten: deque[Event] = deque()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tutti-tracking", daemon=True)

    def start(self) -> None:
        """Starts the delivery, beginning with the events that an earlier process has left."""
        self._thread.start()

    def start_study(self, **start: Unpack[StudyStart]) -> None:
        values = {"parameters": dict(start["parameters"]), "tags": dict(start["tags"])}
        values |= {"columns": [*start.get("columns", ())], "files": [self._place(file) for file in start["files"]]}
        self._put("start_study", **values, at=_now(start.get("at")))

    def start_trial(self, key: str, **start: Unpack[TrialStart]) -> None:
        values = {"parameters": dict(start["parameters"]), "tags": dict(start["tags"])}
        self._put("start_trial", key=key, number=start["number"], **values, at=_now(start.get("at")))

    def log_metrics(self, key: str, metrics: Mapping[str, float], *, step: int, at: float) -> None:
        self._put("log_metrics", key=key, metrics=dict(metrics), step=step, at=at)

    def log_history(self, key: str, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            self.log_metrics(key, row.metrics, step=row.step, at=row.at)

    def start_over(self, key: str, *, at: float) -> None:
        self._put("start_over", key=key, at=at)

    def log_picture(self, key: str, name: str, png: bytes) -> None:
        self._put("log_picture", key=key, name=name, png=base64.b64encode(png).decode())

    def end_trial(self, key: str, **end: Unpack[TrialEnd]) -> None:
        values = {"state": end["state"].value, "metrics": dict(end["metrics"]), "tags": dict(end["tags"])}
        self._put("end_trial", key=key, reason=end["reason"], **values, at=_now(end.get("at")))

    def end_study(self, *, state: TrialState, metrics: Mapping[str, float], at: float | None = None) -> None:
        self._put("end_study", state=state.value, metrics=dict(metrics), at=_now(at))

    def pending(self) -> int:
        """The number of events that wait; raises OSError where their file cannot be read."""
        return self._spool.pending() + len(self._unwritten)

    def close(self, timeout: float = 30.0) -> int:
        """Delivers as many events as possible within ``timeout`` seconds, then stops.

        Returns:
            The number of events left in the file.
        """
        with self._writing:
            try:
                self._write_unwritten()
            except OSError as error:
                missed = counted(len(self._unwritten), "report")
                _log.warning("MLflow will miss %s: its queue cannot be written (%s).", missed, error)
        self._signal(closing=True)
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._signal(stopped=True)
        try:
            return self._spool.pending()
        except OSError as error:
            _log.warning("MLflow may miss some of what happened: its queue cannot be read (%s).", error)
            return 0

    def _place(self, file: Path) -> str:
        """The file's path relative to the spool's folder, which may move before the event is delivered."""
        file, folder = file.absolute(), self._folder.absolute()
        return str(file.relative_to(folder) if file.is_relative_to(folder) else file)

    def _put(self, call: str, **arguments: object) -> None:
        event = {"call": call, **arguments}
        with self._writing:
            try:
                self._write_unwritten()
                self._spool.append(event)
            except OSError as error:
                if not self._unwritten:
                    _log.warning("What MLflow is to be told waits in memory: its queue cannot be written (%s).", error)
                self._unwritten.append(event)
        self._signal()

    def _write_unwritten(self) -> None:
        while self._unwritten:
            self._spool.append(self._unwritten[0])
            self._unwritten.popleft()

    def _signal(self, *, closing: bool = False, stopped: bool = False) -> None:
        with self._wake:
            self._closing |= closing
            self._stopped |= stopped
            self._wake.notify_all()

    def _run(self) -> None:
        pause, unreachable = _FIRST_PAUSE, False
        while self._wait_for_events():
            try:
                self._deliver_some()
            except Exception as error:  # this thread must survive any failure of the store
                if not unreachable:
                    _log.warning("Nothing reaches MLflow for now; the study goes on, and it is tried again. %s", error)
                unreachable = True
                self._pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if unreachable:
                _log.info("MLflow is back; what waited is being delivered.")
            pause, unreachable = _FIRST_PAUSE, False
        if self._tracker is not None:
            self._tracker.close()

    def _wait_for_events(self) -> bool:
        """Waits until there are events to deliver (true) or the delivery has to end (false)."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopped or self._closing or self._spool.waiting)
            return not self._stopped and self._spool.waiting

    def _pause(self, seconds: float) -> None:
        """Waits before the next attempt; ``close`` interrupts it, and shortens later pauses."""
        with self._wake:
            closing = self._closing
            timeout = min(seconds, _CLOSING_PAUSE) if closing else seconds
            self._wake.wait_for(lambda: self._stopped or self._closing != closing, timeout)

    def _deliver_some(self) -> None:
        if self._tracker is None:
            self._tracker = self._make()
        for batch in _batches(self._spool.peek(_BATCH)):
            if self._stopped:
                return
            events = [event for _, event in batch if event is not None]
            _deliver(self._tracker, events, folder=self._folder)
            self._spool.advance(batch[-1][0])


def _batches(events: Sequence[tuple[int, Event | None]]) -> Iterator[list[tuple[int, Event | None]]]:
    """Groups consecutive metrics; every other event is a batch by itself."""

    def has_metrics(entry: tuple[int, Event | None]) -> bool:
        return entry[1] is not None and entry[1].get("call") == "log_metrics"

    for are_metrics, group in groupby(events, key=has_metrics):
        if are_metrics:
            yield list(group)
        else:
            yield from ([entry] for entry in group)


def _deliver(tracker: Tracker, events: Sequence[Event], *, folder: Path) -> None:
    """Delivers a batch. Single events that the store refuses are skipped with a warning.

    Args:
        folder: the spool's. Files are relative to it; those outside of it are not uploaded, whatever an event that was
            edited says.
    """
    by_key: dict[str, list[MetricRow]] = {}
    for event in events:
        if event.get("call") == "log_metrics":
            _try("metrics", partial(_add_metrics, event, by_key))
        else:
            what = f"{event.get('call', 'a report')} {event.get('key', '')}".strip()
            _try(what, partial(_call, tracker, event, folder=folder))
    for key, rows in by_key.items():
        try:
            tracker.log_history(key, rows)
        except Exception as error:  # one row is invalid: deliver the others
            if isinstance(error, TrackingError | OSError) and not isinstance(error, RefusedError):
                raise
            for row in rows:
                _try(f"metrics of step {row.step} {key}".strip(), partial(tracker.log_history, key, [row]))


def _add_metrics(event: Event, by_key: dict[str, list[MetricRow]]) -> None:
    row = MetricRow(event["metrics"], event["step"], event["at"])
    by_key.setdefault(event["key"], []).append(row)


def _try(what: str, call: Callable[[], None]) -> None:
    try:
        call()
    except RefusedError as error:
        _log.warning("Skipped for MLflow: %s. %s", what, error)
    except (TrackingError, OSError):
        raise
    except Exception as error:  # one faulty event, such as an edited line, must not block those after it
        _log.warning("Skipped for MLflow: %s. It cannot be delivered: %r", what, error)


def _call(tracker: Tracker, event: Event, *, folder: Path) -> None:
    """Performs the call that an event describes."""
    arguments = dict(event)
    call = arguments.pop("call", None)
    if call not in _CALLS:
        raise ValueError(f"an event has the unknown call {call!r}")
    if "state" in arguments:
        arguments["state"] = TrialState(arguments["state"])
    if "files" in arguments:
        files = [folder / file for file in arguments["files"]]
        arguments["files"] = [file for file in files if is_inside(file, folder)]
        if outside := [str(file) for file in files if file not in arguments["files"]]:
            _log.warning("Skipped for MLflow: files outside of %s: %s.", folder, ", ".join(outside))
    if "png" in arguments:
        arguments["png"] = base64.b64decode(arguments["png"])
    getattr(tracker, call)(**arguments)


def _now(at: float | None) -> float:
    return time.time() if at is None else at
