"""A study ends at its limits, and so do running trials that can no longer be of use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tutti.config.study import Search
from tutti.records import TrialRecord, TrialState
from tutti.search.limits import Ending, ending_of, is_over

FINISHED, STOPPED, FAILED, RUNNING = TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED, TrialState.RUNNING


def records(*states_and_scores: tuple[TrialState, float | None]) -> list[TrialRecord]:
    return [
        TrialRecord(f"t{number:04d}", number, state, score) for number, (state, score) in enumerate(states_and_scores)
    ]


def limit(search: Search, trials: list[TrialRecord], seconds: float = 0.0) -> str | None:
    ending = ending_of(search, trials, seconds=seconds)
    return ending and ending.limit


def test_a_study_without_limits_ends_with_its_trials_alone():
    ended = records(*[(FINISHED, 0.5)] * 7)
    assert ending_of(Search(trials=8), ended, seconds=1e9) is None
    assert not is_over(Search(trials=8), ended, seconds=1e9)
    assert is_over(Search(trials=7), ended, seconds=0)
    assert not is_over(Search(trials=7), [*ended[:6], *records((RUNNING, 0.9))], seconds=0)


@pytest.mark.parametrize(("score", "reached"), [(0.79, False), (0.8, True), (0.9, True)])
def test_a_score_counts_once_the_trial_that_has_it_has_finished(score, reached):
    search = Search(target_score=0.8)
    assert limit(search, records((FINISHED, 0.5), (FINISHED, score))) == ("target_score" if reached else None)
    assert limit(search, records((FINISHED, 0.5), (RUNNING, score), (STOPPED, score), (FAILED, None))) is None


def test_a_target_may_be_below_zero():
    assert limit(Search(target_score=-0.2), records((FINISHED, -0.3))) is None
    assert limit(Search(target_score=-0.2), records((FINISHED, -0.3), (FINISHED, -0.1))) == "target_score"


def test_the_reason_names_the_trial_and_the_score():
    ending = ending_of(Search(target_score=0.8), records((FINISHED, 0.5), (FINISHED, 0.85)), seconds=0)
    assert ending == Ending("target_score", "t0001 has reached the score 0.8 with 0.8500")


def test_the_hours_are_those_of_all_runs_together():
    search = Search(max_hours=0.5)
    assert ending_of(search, [], seconds=1799) is None
    assert ending_of(search, [], seconds=1800) == Ending("max_hours", "its trials have run for 0.5 h")


def test_patience_counts_the_trials_after_the_best_that_ended_without_being_better():
    search = Search(patience=2)
    best = (FINISHED, 0.8)
    assert limit(search, records((FINISHED, 0.5), (FINISHED, 0.4), (FAILED, None))) is None
    assert limit(search, records(best, (FINISHED, 0.8), (STOPPED, 0.7))) == "patience"  # an equal score is not better
    assert limit(search, records(best, (FINISHED, 0.8), (STOPPED, 0.9))) is None  # out of time, but better
    assert limit(search, records(best, (FINISHED, 0.5), (FAILED, None), (RUNNING, None))) is None
    assert limit(search, records(best, (FINISHED, 0.5), (FINISHED, 0.6), (FINISHED, 0.9))) is None
    assert limit(search, records((STOPPED, 0.8), (STOPPED, 0.7), (STOPPED, 0.6))) is None  # no finished trial yet
    assert limit(search, records(best, (FINISHED, 0.5), (STOPPED, None))) is None  # without a score: it had not started


def test_patience_counts_from_the_end_of_a_slow_best_trial_and_not_from_its_number():
    best, *others = records((FINISHED, 0.8), (FINISHED, 0.5), (STOPPED, 0.4), (FINISHED, 0.8))
    slow = replace(best, ended=9.0)
    others = [replace(each, ended=float(each.number)) for each in others]
    assert limit(Search(patience=1), [slow, *others]) == "patience"  # t0003 had that score before
    assert limit(Search(patience=2), [slow, *others]) is None
    assert limit(Search(patience=1), [replace(slow, score=0.9), *others]) is None


def test_running_trials_end_with_the_hours_and_the_target_and_outlive_patience():
    out_of_patience = records((FINISHED, 0.8), (FINISHED, 0.5), (RUNNING, 0.7))
    assert not is_over(Search(patience=1), out_of_patience, seconds=0)
    assert is_over(Search(patience=1), out_of_patience[:2], seconds=0)
    assert is_over(Search(target_score=0.8), out_of_patience, seconds=0)
    assert is_over(Search(max_hours=1), out_of_patience, seconds=3600)
