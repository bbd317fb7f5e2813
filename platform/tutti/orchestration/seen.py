"""What the study's log remembers of a trial while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """What the log remembers of a running trial.

    Attributes:
        earlier: seconds of training in earlier runs of the study, as far as they reported.
        started: when its workers began it in this one.
        epoch: the last report's: an epoch or evaluation; with folds, how many are whole.
        result: the last report, but for those of a fold's epochs.
        folds: keys of the runs of folds that are being trained, or were when an earlier run was cut off.
        infeasible: whether it failed because it does not fit into memory.
        halved: why its batches are halved.
        fitted: whether it has trained for a whole epoch; none before its first report.
        stopped: why the study's stopper ends it with its last report.
        notices: what users were told of it that ended nothing.
        cut_off: seconds of this run's attempts that were cut off, each from the workers' first look at it to its last
            report.
        attempt: of the last attempt, when its workers began it, and the seconds to its last report.
    """

    earlier: float = 0.0
    started: float = field(default_factory=time.time)
    epoch: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    folds: set[str] = field(default_factory=set)
    precision: str | None = None
    final: bool = False
    failed: str | None = None
    infeasible: bool = False
    stopped: str | None = None
    halved: str | None = None
    fitted: bool | None = None
    notices: list[str] = field(default_factory=list)
    cut_off: float = 0.0
    attempt: tuple[float, float] | None = None

    def time(self, result: Mapping[str, Any]) -> None:
        """Takes the time of a report in."""
        if "began" in result:
            if self.attempt and self.attempt[0] != result["began"]:
                self.cut_off += self.attempt[1]
            self.attempt = result["began"], result["at"] - result["began"]

    @property
    def wall(self) -> float:
        """Seconds from its start until now, the time between the runs of its study left out."""
        return self.earlier + time.time() - self.started

    @property
    def seconds(self) -> float:
        """How long it was trained by its last report: what was lost after a report is not counted."""
        return self.earlier + self.cut_off + (self.attempt[1] if self.attempt else 0.0)
