"""The state of one trial in the broker."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

from tutti.orchestration.broker.messages import Report, TrialConfig, evaluation_of, is_last


@dataclass
class BrokerTrial:
    """The state of one trial.

    Attributes:
        config: sent to the pool that trains the trial; changed when its batch is halved and by exchanges.
        ticket: number of times that Tune submitted the trial. Calls with an older ticket are ignored.
        reports: all reports in order. A report becomes empty, to free memory, once Tune has decided on it.
        decided_count: how many of the reports Tune has decided on.
        last_evaluation: fold and number of the evaluation that was reported last.
        attempt: increases whenever a pool takes the trial and whenever one is lost. Reports of an older attempt are
            ignored.
        loss_count: how many pools were lost while they trained it.
        pool: the pool that trains it now.
        begun: the pool's workers have told that they train it.
        waiting_since_epoch: the epoch after which it waits for the rest of its population; none while it is not
            waiting.
        score: its last score, while it is waiting.
        fitted: it has completed an epoch, so its batch fits into memory.
        in_new_stage: it has completed no epoch of its present stage, which may need more memory than those before.
    """

    config: TrialConfig
    ticket: int = 0
    reports: list[Report] = field(default_factory=list)
    decided_count: int = 0
    last_evaluation: tuple[int | None, int] | None = None
    attempt: int = 0
    loss_count: int = 0
    pool: str | None = None
    begun: bool = False
    stopped: bool = False
    waiting_since_epoch: int | None = None
    score: float = 0.0
    fitted: bool = False
    in_new_stage: bool = False

    def __post_init__(self) -> None:
        self.fitted, self.in_new_stage = self.config.get("fitted", False), self.config.get("in_new_stage", False)

    @property
    def has_ended(self) -> bool:
        """Whether its last report is final or a failure."""
        return bool(self.reports) and is_last(self.reports[-1])

    @property
    def is_over(self) -> bool:
        """Whether nobody trains it any further."""
        return self.has_ended or self.stopped

    def add(self, report: Report) -> bool:
        """Adds a report of its workers, unless they repeat the evaluation of a state that was reported already.

        Returns:
            Whether it was added.
        """
        evaluation = evaluation_of(report)
        if "epoch" in evaluation:
            previous, self.last_evaluation = self.last_evaluation, (report.get("fold"), evaluation["epoch"])
            if evaluation.get("repeated") and previous == self.last_evaluation and not is_last(report):
                return False
        self.reports.append(report)
        return True

    def use_saved_states(self) -> None:
        """Lets the next attempt continue from the trial's saved states."""
        self.config = self.config.copy()
        self.config.pop("anew", None)

    def restarted(self) -> BrokerTrial:
        """The trial, stopped and submitted again: without its reports, and with all that was learnt of its memory."""
        trial = copy(self)
        trial.reports, trial.decided_count, trial.last_evaluation = [], 0, None
        trial.pool, trial.attempt, trial.stopped, trial.waiting_since_epoch = None, self.attempt + 1, False, None
        if trial.fitted:
            trial.use_saved_states()
        return trial
