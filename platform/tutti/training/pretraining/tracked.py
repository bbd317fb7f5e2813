"""A pretraining run in the tracker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tutti.records import TrialState
from tutti.tracking.protocol import Tracker
from tutti.training.pretraining.loop import Progress


class RunLog:
    """Logs progress as metrics by step; does nothing without a tracker."""

    def __init__(self, tracker: Tracker | None) -> None:
        self._tracker = tracker

    def __call__(self, progress: Progress) -> None:
        if self._tracker:
            self._tracker.log_metrics("", progress.measures, step=progress.step, at=time.time())

    def end(self, measures: Mapping[str, float]) -> None:
        """Ends the run as a finished one."""
        if self._tracker:
            final = {f"final_{name}": value for name, value in measures.items()}
            self._tracker.end_study(state=TrialState.FINISHED, metrics=final)


@contextmanager
def tracked(tracker: Tracker | None, parameters: Mapping[str, Any]) -> Iterator[RunLog]:
    """Begins the run, or goes on with it, and says how it ended; the tracker is closed after it."""
    if tracker is None:
        yield RunLog(None)
        return
    try:
        tracker.start_study(parameters=parameters, tags={"tutti.kind": "pretraining"}, files=[])
        yield RunLog(tracker)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        tracker.end_study(state=TrialState.INTERRUPTED if interrupted else TrialState.FAILED, metrics={})
        raise
    finally:
        tracker.close()
