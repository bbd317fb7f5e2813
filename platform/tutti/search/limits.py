"""What ends a study before it has all its trials: its hours are over, a score is reached, or patience is at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tutti.config.study import Search
from tutti.errors import counted
from tutti.records import TrialRecord, TrialState

SECONDS = 3600  # of an hour


@dataclass(frozen=True)
class Ending:
    """Why a study ends before it has all its trials.

    Attributes:
        limit: the key of ``search:`` that ends it.
        reason: what happened, in one sentence without its full stop.
    """

    limit: str
    reason: str

    @property
    def at_once(self) -> bool:
        """Whether running trials end too. Those of a study that is out of patience may yet be better, and go on."""
        return self.limit != "patience"


def ending_of(search: Search, records: Sequence[TrialRecord], *, seconds: float) -> Ending | None:
    """The limit that a study has reached, if any.

    Args:
        records: every trial of the study, by number.
        seconds: how long its runs took so far, together.
    """
    finished = [record for record in records if record.state is TrialState.FINISHED and record.score is not None]
    best = max(finished, key=lambda record: record.score or 0.0, default=None)
    if search.target_score is not None and best and best.score is not None and best.score >= search.target_score:
        return Ending("target_score", f"{best.key} has reached the score {search.target_score:g} with {best.score:.4f}")
    if search.max_hours is not None and seconds >= search.max_hours * SECONDS:
        return Ending("max_hours", f"its trials have run for {search.max_hours:g} h")
    if search.patience is not None and best:
        ended = (TrialState.FINISHED, TrialState.STOPPED)
        later = [record for record in records if record.number > best.number and record.score is not None]
        since = sum(record.state in ended for record in later)
        if since >= search.patience:
            return Ending("patience", f"none of {counted(since, 'trial')} after {best.key} was better than it")
    return None


def is_over(search: Search, records: Sequence[TrialRecord], *, seconds: float) -> bool:
    """Whether a run of the study would have nothing to do: it has all its trials, or has reached a limit."""
    ending = ending_of(search, records, seconds=seconds)
    if ending and ending.at_once:
        return True
    running = any(record.state is TrialState.RUNNING for record in records)
    return not running and (ending is not None or len(records) >= search.trials)
