"""A tracker that never waits for the store: events go to a file, and one thread delivers them."""

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

from tutti.errors import TrackingError, counted
from tutti.records import Scalar, TrialState
from tutti.tracking.protocol import MetricRow, RefusedError, Tracker, check_ended
from tutti.tracking.spool import Event, Spool

_log = logging.getLogger(__name__)

_BATCH = 500
_CALLS = {"start_study", "start_trial", "log_picture", "end_trial", "end_study"}
_FIRST_PAUSE, _LONGEST_PAUSE, _CLOSING_PAUSE = 0.5, 30.0, 1.0  # seconds between two tries


class QueuedTracker:
    """The Tracker protocol over another tracker, through a file. Every call returns at once; none raises TrackingError.

    Events are delivered in order, metrics in batches. While the store is away they wait in the file, and delivery is
    tried again after 0.5 s, then ever more rarely, up to 30 s. What is left when the process ends, or is killed, the
    next QueuedTracker on the same file delivers first. An event that the store refuses for good is skipped with a
    warning. One that the file cannot take, as on a full disk, is kept in memory and written before the next: it is lost
    only where the process ends before there is room.

    Args:
        make: makes the tracker that is delivered to; called in the delivering thread, and again while it raises
            TrackingError.
        spool: the file; made where there is none.

    Raises:
        StorageError: where the file cannot be made or read.
    """

    def __init__(self, make: Callable[[], Tracker], *, spool: Path) -> None:
        self._make = make
        self._tracker: Tracker | None = None
        self._spool = Spool(spool)
        self._wake = threading.Condition()
        self._closing = self._stopped = False
        self._unwritten: deque[Event] = deque()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tutti-tracking", daemon=True)

    def start(self) -> None:
        """Starts delivering, first what an earlier process left."""
        self._thread.start()

    def start_study(
        self,
        *,
        parameters: Mapping[str, Scalar],
        tags: Mapping[str, str],
        files: Sequence[Path],
        columns: Sequence[str] = (),
        at: float | None = None,
    ) -> None:
        values = {"parameters": dict(parameters), "tags": dict(tags), "columns": list(columns)}
        self._put("start_study", **values, files=[str(file.absolute()) for file in files], at=_now(at))

    def start_trial(
        self,
        key: str,
        *,
        number: int,
        parameters: Mapping[str, Scalar],
        tags: Mapping[str, str],
        at: float | None = None,
    ) -> None:
        self._put("start_trial", key=key, number=number, parameters=dict(parameters), tags=dict(tags), at=_now(at))

    def log_metrics(self, key: str, metrics: Mapping[str, float], *, step: int, at: float) -> None:
        self._put("log_metrics", key=key, metrics=dict(metrics), step=step, at=at)

    def log_history(self, key: str, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            self.log_metrics(key, row.metrics, step=row.step, at=row.at)

    def log_picture(self, key: str, name: str, png: bytes) -> None:
        self._put("log_picture", key=key, name=name, png=base64.b64encode(png).decode())

    def end_trial(
        self,
        key: str,
        *,
        state: TrialState,
        reason: str | None,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        at: float | None = None,
    ) -> None:
        check_ended(state)
        values = {"key": key, "state": state.value, "reason": reason, "metrics": dict(metrics), "tags": dict(tags)}
        self._put("end_trial", **values, at=_now(at))

    def end_study(self, *, state: TrialState, metrics: Mapping[str, float], at: float | None = None) -> None:
        check_ended(state)
        self._put("end_study", state=state.value, metrics=dict(metrics), at=_now(at))

    def close(self, timeout: float = 30.0) -> int:
        """Delivers what it can within ``timeout`` seconds, then stops.

        Returns:
            How many events are left in the file.
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
        pause, away = _FIRST_PAUSE, False
        while self._wait_for_events():
            try:
                self._deliver_some()
            except Exception as error:  # this thread has to outlive whatever befalls the store
                if not away:
                    _log.warning("Nothing reaches MLflow for now; the study goes on, and it is tried again. %s", error)
                away = True
                self._rest(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if away:
                _log.info("MLflow is back; what waited is being delivered.")
            pause, away = _FIRST_PAUSE, False
        if self._tracker is not None:
            self._tracker.close()

    def _wait_for_events(self) -> bool:
        """Whether there is something to deliver; false once it is time to end."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopped or self._closing or self._spool.waiting)
            return not self._stopped and self._spool.waiting

    def _rest(self, pause: float) -> None:
        with self._wake:
            closing = self._closing
            self._wake.wait_for(
                lambda: self._stopped or self._closing != closing, min(pause, _CLOSING_PAUSE) if closing else pause
            )

    def _deliver_some(self) -> None:
        if self._tracker is None:
            self._tracker = self._make()
        for batch in _batches(self._spool.peek(_BATCH)):
            if self._stopped:
                return
            _deliver(self._tracker, [event for _, event in batch if event is not None])
            self._spool.advance(batch[-1][0])


def _batches(events: Sequence[tuple[int, Event | None]]) -> Iterator[list[tuple[int, Event | None]]]:
    """Runs of metrics together, everything else one by one."""
    for metrics, group in groupby(
        events, key=lambda item: item[1] is not None and item[1].get("call") == "log_metrics"
    ):
        if metrics:
            yield list(group)
        else:
            yield from ([item] for item in group)


def _deliver(tracker: Tracker, events: Sequence[Event]) -> None:
    """Delivers a batch. Events that the store refuses, one by one, are skipped with a warning.

    Raises:
        TrackingError: where the store is away.
    """
    by_key: dict[str, list[MetricRow]] = {}
    for event in events:
        if event.get("call") == "log_metrics":
            _try("metrics", partial(_sort, event, by_key))
        else:
            _try(f"{event.get('call')} {event.get('key', '')}".strip(), partial(_call, tracker, event))
    for key, rows in by_key.items():
        try:
            tracker.log_history(key, rows)
        except (RefusedError, TypeError, ValueError):  # one of them is wrong: find it
            for row in rows:
                _try(f"metrics of step {row.step} {key}".strip(), partial(tracker.log_history, key, [row]))


def _sort(event: Event, by_key: dict[str, list[MetricRow]]) -> None:
    row = MetricRow(event["metrics"], event["step"], event["at"])
    by_key.setdefault(event["key"], []).append(row)


def _try(what: str, call: Callable[[], None]) -> None:
    try:
        call()
    except RefusedError as error:
        _log.warning("Skipped for MLflow: %s. %s", what, error)
    except (TrackingError, OSError):
        raise
    except Exception:  # whatever is wrong with one event must not hold up all behind it
        _log.exception("Skipped for MLflow: %s.", what)


def _call(tracker: Tracker, event: Event) -> None:
    """Turns an event back into the call that it was."""
    arguments = dict(event)
    call = arguments.pop("call")
    if call not in _CALLS:
        raise ValueError(f"an event has the unknown call {call!r}")
    if "state" in arguments:
        arguments["state"] = TrialState(arguments["state"])
    if "files" in arguments:
        arguments["files"] = [Path(file) for file in arguments["files"]]
    if "png" in arguments:
        arguments["png"] = base64.b64decode(arguments["png"])
    getattr(tracker, call)(**arguments)


def _now(at: float | None) -> float:
    return time.time() if at is None else at
