"""Progress of a study, in a terminal and in a log."""

from __future__ import annotations

import dataclasses
import errno
import io
import math
import os

import pytest
from rich.console import Console

from tutti.records import TrialRecord, TrialState, best_trial
from tutti.workflows import progress
from tutti.workflows.console import best_effort_console
from tutti.workflows.progress import Progress, best_so_far, cut_off, failures, summary


def record(number: int, state: TrialState = TrialState.RUNNING, *scores: float, **more) -> TrialRecord:
    by_epoch = dict(enumerate(scores, start=1))
    return TrialRecord(
        f"t{number:04d}",
        number,
        state,
        score=max(scores, default=None),
        task_scores={"mood": max(scores)} if scores else {},
        parameters={"learning_rate": 0.00123456, "pooling": "cls"},
        scores_by_epoch=by_epoch,
        **more,
    )


class Lost(io.StringIO):
    """Standard output that fails from the first write on that comes after ``until``."""

    def __init__(self, error: OSError, *, until: str, terminal: bool) -> None:
        super().__init__()
        self.error, self.until, self.terminal = error, until, terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        if self.until in self.getvalue():
            raise self.error
        return super().write(text)


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, height=24, soft_wrap=True)


def at_every_event(monkeypatch) -> None:
    """Lets a study's records be read as often as possible."""
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0)
    monkeypatch.setattr(progress, "SHARE", math.inf)


def test_a_log_gets_one_line_for_each_thing_that_happened(monkeypatch):
    at_every_event(monkeypatch)
    out, trials = console(terminal=False), []
    with Progress(out, lambda: trials, total=3, tasks=["mood"]) as watch:
        watch()
        trials[:] = [record(0)]
        watch()
        watch()
        trials[:] = [record(0, TrialState.RUNNING, 0.5), record(1)]
        watch()
        trials[:] = [
            record(0, TrialState.FINISHED, 0.5, 0.75, 0.625),
            record(1, TrialState.FAILED, reason="the loss is nan after step 7"),
        ]
    assert out.file.getvalue().splitlines() == [
        "t0000 running | 0 of 3 trials done, 1 running, best –",
        "t0000 running, epoch 1, score 0.5000 | 0 of 3 trials done, 2 running, best 0.5000 (t0000)",
        "t0001 running | 0 of 3 trials done, 2 running, best 0.5000 (t0000)",
        "t0000 finished, epoch 3, score 0.6250 (best 0.7500) | "
        "2 of 3 trials done (1 failed), 0 running, best 0.7500 (t0000)",
        "t0001 failed: the loss is nan after step 7 | 2 of 3 trials done (1 failed), 0 running, best 0.7500 (t0000)",
    ]


def test_of_an_epoch_with_several_evaluations_the_log_tells_how_far_each_is(monkeypatch):
    at_every_event(monkeypatch)
    out = console(terminal=False)
    with Progress(
        out, lambda: [record(0, TrialState.RUNNING, 0.5, 0.6, 0.7)], total=1, tasks=["mood"], evals_per_epoch=2
    ):
        pass
    assert out.file.getvalue().startswith("t0000 running, epoch 1.5, score 0.7000")


def test_of_trials_with_folds_the_log_counts_folds_and_the_best_is_a_whole_trial_s(monkeypatch):
    at_every_event(monkeypatch)
    out, trials = console(terminal=False), []
    with Progress(out, lambda: trials, total=2, tasks=["mood"], folds=3) as watch:
        for scores in ([0.9], [0.9, 0.7]):
            trials[:] = [record(0, TrialState.RUNNING, *scores)]
            watch()
        trials[:] = [record(0, TrialState.FINISHED, 0.9, 0.7, 0.72), record(1, TrialState.STOPPED, 0.95)]
        trials[0] = dataclasses.replace(trials[0], score=0.71)
    assert out.file.getvalue().splitlines() == [
        "t0000 running, fold 1 of 3, mean score 0.9000 | 0 of 2 trials done, 1 running, best –",
        "t0000 running, fold 2 of 3, mean score 0.7000 | 0 of 2 trials done, 1 running, best –",
        "t0000 finished, 3 folds, score 0.7100 | 2 of 2 trials done (1 stopped early), 0 running, best 0.7100 (t0000)",
        "t0001 stopped early, fold 1 of 3, mean score 0.9500 | "
        "2 of 2 trials done (1 stopped early), 0 running, best 0.7100 (t0000)",
    ]


def test_the_store_is_read_at_most_twice_a_second():
    reads = []
    with Progress(console(terminal=False), lambda: reads.append(None) or [], total=1, tasks=[]) as watch:
        for _ in range(100):
            watch()
    assert len(reads) == 3  # the start, the first call, and the end


def test_a_log_of_a_resumed_study_has_no_line_for_a_trial_that_had_ended():
    out, trials = console(terminal=False), [record(0, TrialState.FINISHED, 0.5, ended=1.0), record(1)]
    with Progress(out, lambda: trials, total=2, tasks=["mood"]):
        trials[1] = record(1, TrialState.FINISHED, 0.75, ended=2.0)
    assert out.file.getvalue().splitlines() == [
        "t0001 finished, epoch 1, score 0.7500 | 2 of 2 trials done, 0 running, best 0.7500 (t0001)"
    ]


def test_a_terminal_gets_one_live_table_that_is_gone_at_the_end():
    out = console(terminal=True)
    with Progress(out, lambda: [record(0, TrialState.RUNNING, 0.5)], total=2, tasks=["mood"]) as watch:
        watch()
        shown = out.file.getvalue()
    assert "0 of 2 trials done, 1 running" in shown
    assert all(text in shown for text in ("t0000", "0.5000", "mood", "lr", "0.00123", "pooling", "cls"))
    assert out.file.getvalue().endswith("\x1b[2K")  # the last lines are erased


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.EIO])
def test_output_that_can_no_longer_be_written_ends_neither_the_display_nor_a_notice(monkeypatch, terminal, number):
    at_every_event(monkeypatch)
    trials = [record(0)]
    lost = Lost(OSError(number, os.strerror(number)), until="t0000", terminal=terminal)
    out = best_effort_console(lost)
    assert out.is_terminal is terminal
    with Progress(out, lambda: trials, total=2, tasks=["mood"]) as watch:
        watch()
        trials.append(record(1))
        watch()
        out.print("t0001: a notice")
        lost.until = "no such text"  # such as space that is free again: the rest of a line would mislead
        watch()
    assert "t0000" in lost.getvalue()
    assert not any(text in lost.getvalue() for text in ("t0001", "a notice"))


def test_the_live_table_of_a_long_study_fits_a_screen():
    out = console(terminal=True)
    with Progress(out, lambda: [record(number) for number in range(300)], total=300, tasks=["mood"]) as watch:
        watch()
        shown = out.file.getvalue()
    assert shown.count("t02") == progress.SHOWN
    assert "t0000" not in shown


def test_the_best_trial_of_an_ended_study_is_a_finished_one():
    records = [
        record(0, TrialState.STOPPED, 0.6),
        record(1, TrialState.FINISHED, 0.5),
        record(2, TrialState.FINISHED, 0.7),
        record(3, TrialState.RUNNING, 0.8),
    ]
    assert best_trial(records) is records[2]
    assert best_trial(records[:1]) is None


def test_while_trials_run_the_best_is_that_of_any_of_them():
    records = [record(0, TrialState.FINISHED, 0.7), record(1), record(2, TrialState.RUNNING, 0.9, 0.8)]
    assert best_so_far(records) is records[2]
    assert best_so_far(records[1:2]) is None
    failed = record(3, TrialState.FAILED, 0.99)  # it has no vote, and no score that the study could end with
    assert best_so_far([*records, failed]) is records[2]


def test_of_many_reasons_to_fail_the_first_are_listed_and_the_others_counted():
    trials = [record(0), *(record(number, TrialState.FAILED, reason=f"step {number}") for number in range(1, 8))]
    first = [f"t{number:04d} failed: step {number}" for number in range(1, 6)]
    assert failures(trials) == [*first, "2 more reasons: tutti trials --json has them"]
    assert failures(trials[:6]) == first


def test_trials_that_stopped_or_failed_are_counted_among_those_done():
    states = [TrialState.FINISHED] * 3 + [TrialState.STOPPED] * 2 + [TrialState.FAILED] + [TrialState.RUNNING] * 2
    records = [record(number, state, 0.8812 - number / 100) for number, state in enumerate(states)]
    expected = "6 of 8 trials done (2 stopped early, 1 failed), 2 running, best 0.8812 (t0000)"
    assert summary(records, total=8, best=records[0]) == expected
    assert summary([], total=1, best=None) == "0 of 1 trial done, 0 running, best –"
    assert summary(records[:3], total=2, best=None) == "3 of 3 trials done, 0 running, best –"


def test_what_nobody_runs_any_more_was_interrupted():
    records = [record(0, TrialState.FINISHED, 0.7), record(1, TrialState.RUNNING, 0.8)]
    left = cut_off(records)
    assert [each.state for each in left] == [TrialState.FINISHED, TrialState.INTERRUPTED]
    expected = "1 of 2 trials done, 0 running, 1 interrupted, best 0.7000 (t0000)"
    assert summary(left, total=2, best=best_trial(left)) == expected
