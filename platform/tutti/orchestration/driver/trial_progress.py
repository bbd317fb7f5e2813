"""What the study's log knows of a running trial."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tutti.orchestration.broker.messages import Report
from tutti.records import Usage
from tutti.search.trial_attributes import SPEED, TRAINED


@dataclass
class TrialProgress:
    """The progress of a running trial, as its reports tell it.

    Attributes:
        earlier_seconds: training time in earlier runs of the study, up to the last report of each.
        began: Unix time at which its workers began it in this run.
        epoch: of its last report: the number of evaluations or, with folds, of complete folds.
        last_report: without reports on evaluations within a fold.
        open_folds: keys of the tracker runs of folds that are being trained, now or when an earlier run was cut off.
        failure: why it failed.
        infeasible: it failed because it does not fit into memory.
        stop_reason: why the study's stopper ends it with its last report.
        halved: why its batch size is halved.
        fitted: what ``fitted_by`` gave for the last report that proved that its batch fits into memory.
        notices: sentences that were shown to the user.
        cut_off_seconds: training time of earlier attempts in this run, up to the last report of each.
        usage: what its training steps have taken, up to its last report.
        attempt: Unix time at which the current attempt began, and seconds from then to its last report.
    """

    earlier_seconds: float = 0.0
    began: float = field(default_factory=time.time)
    epoch: int = 0
    last_report: Report = field(default_factory=Report)
    open_folds: set[str] = field(default_factory=set)
    precision: str | None = None
    is_final: bool = False
    failure: str | None = None
    infeasible: bool = False
    stop_reason: str | None = None
    halved: str | None = None
    fitted: Mapping[str, bool] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    cut_off_seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    attempt: tuple[float, float] | None = None

    def update_time(self, report: Report) -> None:
        """Adds the time of a report, and what the training steps up to it have taken."""
        if "usage" in report:
            self.usage = Usage(**report["usage"])
        if "began" in report:
            if self.attempt and self.attempt[0] != report["began"]:
                self.cut_off_seconds += self.attempt[1]
            self.attempt = report["began"], report["at"] - report["began"]

    @property
    def wall_seconds(self) -> float:
        """Wall time since the trial began, without the time between the runs of its study."""
        return self.earlier_seconds + time.time() - self.began

    @property
    def measured(self) -> dict[str, Any]:
        """Attributes to store with the trial."""
        speed = self.usage.metrics
        return {TRAINED: self.trained_seconds, **({SPEED: speed} if speed else {})}

    @property
    def trained_seconds(self) -> float:
        """Training time up to the last report. Work that was lost after a report does not count."""
        return self.earlier_seconds + self.cut_off_seconds + (self.attempt[1] if self.attempt else 0.0)
