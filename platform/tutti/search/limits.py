"""Limits that end a study before it has run all its trials: maximum hours, a target score, patience."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tutti.config.study import Search
from tutti.errors import counted
from tutti.records import TrialRecord, TrialState, best_trial

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Ending:
    """Why a study ends before it has all its trials.

    Attributes:
        limit: the key of ``search:`` that sets the limit.
        reason: what happened, as one sentence without a full stop.
    """

    limit: str
    reason: str

    @property
    def at_once(self) -> bool:
        """Whether running trials are ended too. Where patience ran out they continue: one may still be the best."""
        return self.limit != "patience"


def ending_of(search: Search, records: Sequence[TrialRecord], *, seconds: float) -> Ending | None:
    """The limit that a study has reached, or None.

    Args:
        records: every trial of the study, by number.
        seconds: total duration of the study's runs so far.
    """
    best = best_trial(records)
    if search.target_score is not None and best and best.score is not None and best.score >= search.target_score:
        return Ending("target_score", f"{best.key} has reached the score {search.target_score:g} with {best.score:.4f}")
    if search.max_hours is not None and seconds >= search.max_hours * SECONDS_PER_HOUR:
        return Ending("max_hours", f"its trials have run for {search.max_hours:g} h")
    if search.patience is not None and best:
        # By their end: those that a slow best trial has outlasted, though they have higher numbers, are no later ones.
        ended = [each for each in records if each.state in (TrialState.FINISHED, TrialState.STOPPED)]
        ended.sort(key=lambda each: (each.ended or 0.0, each.number))
        first = next(each for each in ended if each.state is TrialState.FINISHED and each.score == best.score)
        later = ended[ended.index(first) + 1 :]
        since = sum(each.score is not None and each.score <= (best.score or 0.0) for each in later)
        if since >= search.patience:
            return Ending("patience", f"none of {counted(since, 'trial')} after {first.key} was better than it")
    return None


def is_over(search: Search, records: Sequence[TrialRecord], *, seconds: float) -> bool:
    """Whether another run would have nothing to do: every trial has run, or a limit was reached."""
    ending = ending_of(search, records, seconds=seconds)
    if ending and ending.at_once:
        return True
    running = any(record.state is TrialState.RUNNING for record in records)
    return not running and (ending is not None or len(records) >= search.trials)
