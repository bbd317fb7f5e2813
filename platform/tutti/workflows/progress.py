"""Progress of a study: one live table in a terminal or a notebook, plain lines elsewhere (such as in a log)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from tutti.config.study import Objective
from tutti.errors import StorageError, counted
from tutti.outputs.formatting import number
from tutti.records import TrialRecord, TrialState, best_trial
from tutti.search.objectives import pareto_front
from tutti.workflows.trials_table import trials_table

REFRESH_SECONDS = 0.5
SHARE = 0.05  # of the driver's time that looks at thousands of trials may take
REASONS = 5  # of failed trials, listed below the final table
SHOWN = 18  # rows of the live table; with its frame it must fit a terminal of 24 lines


def best_so_far(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial with the highest score reported so far, finished or not, besides those that failed."""
    alive = (record for record in records if record.state is not TrialState.FAILED)
    return max((r for r in alive if r.score is not None), key=lambda r: r.score or 0.0, default=None)


def cut_off(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The records of a study that is not being run: trials that its store has as running were interrupted."""
    return [
        dataclasses.replace(record, state=TrialState.INTERRUPTED) if record.state is TrialState.RUNNING else record
        for record in records
    ]


def summary(records: Sequence[TrialRecord], *, total: int, best: TrialRecord | None) -> str:
    """One line: how many trials are done, running and interrupted, and the best one.

    A study that has more trials than the ``total`` now asked for has them all.
    """
    total = max(total, len(records))
    running = sum(r.state is TrialState.RUNNING for r in records)
    interrupted = sum(r.state is TrialState.INTERRUPTED for r in records)
    stopped = sum(r.state is TrialState.STOPPED for r in records)
    failed = sum(r.state is TrialState.FAILED for r in records)
    early = ", ".join(f"{count} {what}" for count, what in ((stopped, "stopped early"), (failed, "failed")) if count)
    done = f"{len(records) - running - interrupted} of {counted(total, 'trial')} done"
    parts = [f"{done} ({early})" if early else done, f"{running} running"]
    if interrupted:
        parts.append(f"{interrupted} interrupted")
    parts.append(f"best {number(best.score)} ({best.key})" if best else "best –")
    return ", ".join(parts)


def failures(records: Sequence[TrialRecord]) -> list[str]:
    """Why trials failed, for below the table: one line for each reason, the first few."""
    keys: dict[str, list[str]] = {}
    for record in records:
        if record.state is TrialState.FAILED:
            keys.setdefault(record.reason or "for an unknown reason", []).append(record.key)
    lines = [f"{', '.join(trials)} failed: {reason}" for reason, trials in keys.items()]
    more = f"{counted(len(lines) - REASONS, 'more reason')}: tutti trials --json has them"
    return lines if len(lines) <= REASONS else [*lines[:REASONS], more]


def without_vote(records: Sequence[TrialRecord]) -> str | None:
    """Which trials cannot vote, and why, in one sentence; none if all have finished."""
    stopped = sum(record.state is TrialState.STOPPED for record in records)
    others = sum(record.state is not TrialState.FINISHED for record in records) - stopped
    if not stopped and not others:
        return None
    found = [(stopped, "stopped early"), (others, "failed or unfinished")]
    counts = " and ".join(f"{count} {what}" for count, what in found if count)
    return f"Only finished trials have predictions and can vote: of {counted(len(records), 'trial')} {counts}."


def _news(record: TrialRecord) -> tuple[TrialState, int]:
    """What a log prints a line for when it changes."""
    return record.state, len(record.scores_by_epoch)


class _NotebookTable:
    """A table that a notebook redraws in place, as ``Live`` does in a terminal."""

    def start(self) -> None:
        from IPython.display import display

        self._handle = display(Text(""), display_id=True)

    def update(self, table: RenderableType, *, refresh: bool) -> None:
        self._handle.update(table)

    def stop(self) -> None:
        self._handle.update(Text(""))


class Progress:
    """Shows a study's records while it runs. Call it after every event; it reads and redraws at most twice a second.

    It does so less often where that would take more than a twentieth of the time.

    Args:
        read: returns the study's records.
        total: how many trials the study will have.
        tasks: the names of the study's tasks, in its order.
        folds: cross-validation folds per trial; none if a trial reports epochs. After a fold, a trial reports the mean
            score of the folds so far.
        evals_per_epoch: how often per epoch a trial without folds is evaluated and reports.
        objectives: the study's objectives.
    """

    def __init__(
        self,
        console: Console,
        read: Callable[[], Sequence[TrialRecord]],
        *,
        total: int,
        tasks: Sequence[str],
        folds: int | None = None,
        evals_per_epoch: int = 1,
        objectives: Sequence[Objective] = ("score",),
    ) -> None:
        self._folds, self._evals_per_epoch = folds, evals_per_epoch
        # Means over different numbers of folds are not comparable, so a running trial cannot be the best.
        self._best = best_so_far if folds is None else best_trial
        self._console, self._read, self._total, self._tasks = console, read, total, tasks
        self._objectives = objectives
        self._live: Live | _NotebookTable | None = None
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
        elif console.is_jupyter and not console.quiet:
            self._live = _NotebookTable()
        self._due = 0.0
        self._printed: dict[str, tuple[TrialState, int]] = {}  # by trial key: state and number of reports

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        else:  # trials that ended in an earlier run are no news
            self._printed = {each.key: _news(each) for each in self._read() if each.ended is not None}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._show()
        except StorageError:
            if error is None:
                raise
        finally:
            if self._live:
                self._live.stop()

    def __call__(self) -> None:
        if time.monotonic() >= self._due:
            self._show()

    def _show(self) -> None:
        began = time.monotonic()
        records = list(self._read())
        if self._live:
            best = self._best(records)
            title = summary(records, total=self._total, best=best)
            front = pareto_front(records, self._objectives)
            table = trials_table(
                records[-SHOWN:],
                tasks=self._tasks,
                best=best,
                title=title,
                objectives=self._objectives,
                front=front,
                width=self._console.width,
                details=False,  # one line for each trial, so that all fit
            )
            self._live.update(table, refresh=True)
        else:
            self._print_changes(records)
        ended = time.monotonic()
        self._due = ended + max(REFRESH_SECONDS, (ended - began) / SHARE)

    def _print_changes(self, records: Sequence[TrialRecord]) -> None:
        """Prints a line for every trial that started, reported or ended since the last call."""
        totals = summary(records, total=self._total, best=self._best(records))
        for record in records:
            if self._printed.get(record.key) == _news(record):
                continue
            self._printed[record.key] = _news(record)
            epoch = max(record.scores_by_epoch, default=0)
            line = f"{record.key} {record.state}"
            if epoch:
                line += f", {self._last_report(record, epoch)}"
            if record.reason:
                line += f": {record.reason}"
            self._console.print(f"{line} | {totals}", highlight=False)

    def _last_report(self, record: TrialRecord, epoch: int) -> str:
        """The trial's last report, and its best score if that was another."""
        last, best = number(record.scores_by_epoch[epoch]), number(record.score)
        if self._folds is None:
            epochs = round(epoch / self._evals_per_epoch, 2)
            return f"epoch {epochs:g}, score {last}" + (f" (best {best})" if best != last else "")
        if record.state is TrialState.FINISHED:
            return f"{counted(self._folds, 'fold')}, score {best}"
        return f"fold {epoch} of {self._folds}, mean score {last}"
