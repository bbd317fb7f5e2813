"""What a run of a study knows of a running trial."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from tutti.orchestration.broker.messages import Report, learnt
from tutti.records import Usage
from tutti.search.trial_attributes import Resumption


@dataclass
class TrialProgress:
    """The progress of a running trial, as its reports tell it.

    Attributes:
        resumption: what the store has of it for a later run; at first, what earlier runs have left.
        began: Unix time at which its workers began it in this run.
        epoch: of its last report: the number of evaluations or, with folds, of complete folds.
        last_report: without reports on evaluations within a fold.
        open_folds: keys of the tracker runs of folds that are being trained, now or when an earlier run was cut off.
        failure: why it failed.
        infeasible: it failed because it does not fit into memory.
        stop_reason: why the study's stopper ends it with its last report.
        notices: sentences that were shown to the user.
        cut_off_seconds: training time of earlier attempts in this run, up to the last report of each.
        usage: what its training steps have taken, up to its last report.
        attempt: Unix time at which the current attempt began, and seconds from then to its last report.
    """

    resumption: Resumption = field(default_factory=Resumption)
    began: float = field(default_factory=time.time)
    epoch: int = 0
    last_report: Report = field(default_factory=Report)
    open_folds: set[str] = field(default_factory=set)
    precision: str | None = None
    failure: str | None = None
    infeasible: bool = False
    stop_reason: str | None = None
    notices: list[str] = field(default_factory=list)
    cut_off_seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    attempt: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self._earlier_seconds = self.resumption.seconds

    def update_time(self, report: Report) -> None:
        """Adds the time of a report, and what the training steps up to it have taken."""
        if "usage" in report:
            self.usage = Usage(**report["usage"])
        if "began" in report:
            if self.attempt is None:  # the trial may have waited for its workers
                self.began = report["began"]
            elif self.attempt[0] != report["began"]:
                self.cut_off_seconds += self.attempt[1]
            self.attempt = report["began"], report["at"] - report["began"]

    def after(self, report: Report) -> Resumption:
        """What a later run has to know of it after a report whose time was added."""
        speed = self.usage.metrics or self.resumption.speed
        return replace(learnt(self.resumption, report), seconds=self.trained_seconds, speed=speed)

    @property
    def wall_seconds(self) -> float:
        """Wall time since the trial began, without the time between the runs of its study."""
        return self._earlier_seconds + time.time() - self.began

    @property
    def trained_seconds(self) -> float:
        """Training time up to the last report. Work that was lost after a report does not count."""
        return self._earlier_seconds + self.cut_off_seconds + (self.attempt[1] if self.attempt else 0.0)
