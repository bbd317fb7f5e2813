"""A tracker that keeps everything in memory."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from tutti.errors import Fault
from tutti.records import Scalar, TrialState
from tutti.tracking.protocol import MetricRow, RefusedError, StudyStart, TrialEnd, TrialStart, parent_of


@dataclass
class MemoryRun:
    """The data of one run.

    ``metrics`` maps each name to its values by step, ``times`` each name and step to the time of the measurement;
    ``end_points`` are the names, values and times of all ends.
    """

    number: int | None = None
    parameters: dict[str, Scalar] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, dict[int, float]] = field(default_factory=dict)
    times: dict[tuple[str, int], float] = field(default_factory=dict)
    end_points: set[tuple[str, float, float]] = field(default_factory=set)
    pictures: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    state: TrialState = TrialState.RUNNING
    reason: str | None = None
    started: float = 0.0
    started_over: float = -math.inf
    ended: float | None = None


class MemoryTracker:
    """A Tracker that stores runs in a dictionary.

    Attributes:
        runs: the runs by key, in the order in which they were started; the parent run's key is ``""``.
    """

    def __init__(self) -> None:
        self.runs: dict[str, MemoryRun] = {}

    def pending(self) -> int:
        return 0

    def start_study(self, **start: Unpack[StudyStart]) -> None:
        run = self._start("", start)
        run.columns = tuple(start.get("columns", ()))
        for file in start["files"]:
            if not file.is_file():
                raise _refused(f"the file {file}", "be there", "none", "keep the study's files in their place")
            run.files[file.name] = file.read_bytes()

    def start_trial(self, key: str, **start: Unpack[TrialStart]) -> None:
        self._run(parent_of(key))
        self._start(key, start).number = start["number"]

    def log_metrics(self, key: str, metrics: Mapping[str, float], *, step: int, at: float) -> None:
        self.log_history(key, [MetricRow(metrics, step, at)])

    def log_history(self, key: str, rows: Sequence[MetricRow]) -> None:
        run = self._run(key)
        for row in rows:
            for name, value in row.metrics.items():
                known = run.times.get((name, row.step))
                if known is None or known < run.started_over <= row.at:
                    run.metrics.setdefault(name, {})[row.step] = float(value)
                    run.times[name, row.step] = row.at

    def start_over(self, key: str, *, at: float) -> None:
        run = self._run(key)
        run.started_over = max(at, run.started_over)

    def log_picture(self, key: str, name: str, png: bytes) -> None:
        self._run(key).pictures[name] = png

    def end_trial(self, key: str, **end: Unpack[TrialEnd]) -> None:
        at = end.get("at")
        run = self._run(key)
        run.state, run.reason, run.ended = end["state"], end["reason"], time.time() if at is None else at
        for name, value in end["metrics"].items():
            values, point = run.metrics.setdefault(name, {}), (name, value, run.ended)
            if point not in run.end_points and (not values or values[max(values)] != value):
                values[len(values)] = float(value)
            run.end_points.add(point)
        run.tags |= end["tags"]

    def end_study(self, *, state: TrialState, metrics: Mapping[str, float], at: float | None = None) -> None:
        self.end_trial("", state=state, reason=None, metrics=metrics, tags={}, at=at)

    def close(self, timeout: float = 30.0) -> int:
        return 0

    def _start(self, key: str, start: StudyStart | TrialStart) -> MemoryRun:
        at = start.get("at")
        run = self.runs.setdefault(key, MemoryRun(started=time.time() if at is None else at))
        run.parameters = {**start["parameters"], **run.parameters}
        run.tags |= start["tags"]
        run.state, run.reason, run.ended = TrialState.RUNNING, None, None
        return run

    def _run(self, key: str) -> MemoryRun:
        if key not in self.runs:
            raise _refused(f"the run {key or 'of the study'}", "have been started", "none", "start it first")
        return self.runs[key]


def _refused(what: str, rule: str, got: str, remedy: str) -> RefusedError:
    return RefusedError(Fault(what, rule, got, remedy))
