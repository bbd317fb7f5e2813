"""Progress of a study, in a terminal and in a log."""

from __future__ import annotations

import io

from rich.console import Console

from tutti.cli import progress
from tutti.cli.progress import Progress, best_trial, summary, trials_table
from tutti.records import TrialRecord, TrialState


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


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120)


def test_a_log_gets_one_line_for_each_thing_that_happened(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0)
    out, trials = console(terminal=False), []
    with Progress(out, lambda: trials, total=3) as watch:
        watch()
        trials[:] = [record(0)]
        watch()
        watch()
        trials[:] = [record(0, TrialState.RUNNING, 0.5), record(1)]
        watch()
        trials[:] = [
            record(0, TrialState.FINISHED, 0.5, 0.75),
            record(1, TrialState.FAILED, reason="the loss is nan after step 7"),
        ]
    assert out.file.getvalue().splitlines() == [
        "t0000 running | 0 of 3 trials done, 1 running, best –",
        "t0000 running, epoch 1, score 0.5000 | 0 of 3 trials done, 2 running, best –",
        "t0001 running | 0 of 3 trials done, 2 running, best –",
        "t0000 finished, epoch 2, score 0.7500 | 2 of 3 trials done, 0 running, 1 failed, best 0.7500 (t0000)",
        "t0001 failed: the loss is nan after step 7 | 2 of 3 trials done, 0 running, 1 failed, best 0.7500 (t0000)",
    ]


def test_the_store_is_read_at_most_twice_a_second():
    reads = []
    with Progress(console(terminal=False), lambda: reads.append(None) or [], total=1) as watch:
        for _ in range(100):
            watch()
    assert len(reads) == 2  # the first call, and the end


def test_a_terminal_gets_one_live_table_that_is_gone_at_the_end():
    out = console(terminal=True)
    with Progress(out, lambda: [record(0, TrialState.RUNNING, 0.5)], total=2) as watch:
        watch()
        shown = out.file.getvalue()
    assert "0 of 2 trials done, 1 running" in shown
    assert all(text in shown for text in ("t0000", "0.5000", "mood", "learning_rate=0.00123", "pooling=cls"))
    assert out.file.getvalue().endswith("\x1b[2K")  # the last lines are erased


def test_the_live_table_of_a_long_study_fits_a_screen():
    out = console(terminal=True)
    with Progress(out, lambda: [record(number) for number in range(300)], total=300) as watch:
        watch()
        shown = out.file.getvalue()
    assert shown.count("t02") == progress.SHOWN
    assert "t0000" not in shown


def test_the_best_trial_is_a_finished_one():
    records = [
        record(0, TrialState.STOPPED, 0.9),
        record(1, TrialState.FINISHED, 0.5),
        record(2, TrialState.FINISHED, 0.7),
        record(3, TrialState.RUNNING, 0.8),
    ]
    assert best_trial(records) is records[2]
    assert best_trial(records[:1]) is None
    assert summary(records, total=6) == "3 of 6 trials done, 1 running, 1 stopped early, best 0.7000 (t0002)"


def test_the_table_marks_the_best_and_leaves_a_dash_where_nothing_is_known():
    out = console(terminal=False)
    out.print(trials_table([record(0), record(1, TrialState.FINISHED, 0.5, seconds=12.4)]))
    lines = out.file.getvalue().splitlines()
    assert next(line for line in lines if "t0000" in line).count("–") == 2  # no score, none of the task
    assert "12 s" in next(line for line in lines if "t0001" in line)
