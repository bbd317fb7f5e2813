"""One trial in the broker: its state, its reports, and what they tell of it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field

from tutti.orchestration.broker.messages import Report, TrialConfig, evaluation_of, is_last, learnt
from tutti.records import Scalar, TrialState
from tutti.search.trial_attributes import Resumption


@dataclass
class BrokerTrial:
    """One trial, queued for a pool at first.

    Attributes:
        config: sent to the pool that trains the trial. Its resumption is kept up to date with the reports.
        ticket: number of times that Tune submitted the trial. Calls with an older ticket are ignored.
        reports: all reports in order. A report becomes empty, to free memory, once Tune has decided on it.
        decided_count: how many of the reports Tune has decided on.
        last_evaluation: fold and number of the evaluation that was reported last.
        attempt: increases whenever a pool takes the trial and whenever one is lost. Reports of an older attempt are
            ignored.
        loss_count: how many pools were lost while they trained it.
        pool: the pool that it is assigned to.
        epoch, score: of its last evaluation, while it waits for the rest of its population.
    """

    config: TrialConfig
    state: TrialState = TrialState.QUEUED
    ticket: int = 0
    reports: list[Report] = field(default_factory=list)
    decided_count: int = 0
    last_evaluation: tuple[int | None, int] | None = None
    attempt: int = 0
    loss_count: int = 0
    pool: str | None = None
    epoch: int = 0
    score: float = 0.0

    @property
    def resumption(self) -> Resumption:
        """What another pool has to know of it."""
        return self.config["resumption"]

    def become(self, state: TrialState) -> None:
        """Changes the state, as ``TrialState.to`` allows. Without a pool, it ignores what that still sends."""
        self.state = self.state.to(state)
        if state in (TrialState.QUEUED, TrialState.WAITING):
            self.pool, self.attempt = None, self.attempt + 1

    def tell(self, report: Report) -> None:
        """Adds a report for Tune, and learns of it what another pool has to know."""
        self.reports.append(report)
        self.config = {**self.config, "resumption": learnt(self.resumption, report)}
        if is_last(report):
            self.become(TrialState.FINISHED if "final" in report else TrialState.FAILED)

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
        self.tell(report)
        return True

    def restarted(self) -> BrokerTrial:
        """The trial, submitted again: without its reports, and with all that was learnt of its memory."""
        trial = copy(self)
        trial.reports, trial.decided_count, trial.last_evaluation = [], 0, None
        trial.become(TrialState.QUEUED)
        return trial

    def exchange(self, exchanged: Mapping[str, object], parameters: Mapping[str, Scalar]) -> None:
        """Lets it go on from another trial's state, with these parameters."""
        self.config = {**self.config, "parameters": parameters}
        self.tell({"exchanged": exchanged})
