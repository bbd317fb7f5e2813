"""Progress of a study: one live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tutti.config.study import Objective
from tutti.errors import StorageError, counted
from tutti.records import Scalar, TrialRecord, TrialState, best_trial
from tutti.search.objectives import pareto_front

REFRESH_SECONDS = 0.5
SHOWN = 18  # rows of the live table: with its frame it must fit a terminal of 24 lines


def trials_table(
    records: Sequence[TrialRecord],
    *,
    tasks: Sequence[str],
    best: TrialRecord | None,
    title: str | None = None,
    objectives: Sequence[Objective] = ("score",),
    front: Collection[str] = (),
) -> Table:
    """Trials with state, score, scores of the ``tasks`` in that order, parameters and duration; ``best`` stands out.

    Other ``objectives`` stand beside the score, but for the seconds, which are the duration. The trials whose keys are
    in ``front`` have a mark.
    """
    beside = [name for name in objectives if name not in ("score", "seconds")]
    table = Table(title=title, title_justify="left")
    for name in ("trial", "state"):
        table.add_column(name, no_wrap=True)
    if len(objectives) > 1:
        table.add_column("front", justify="center", no_wrap=True)
    for name in ("score", *beside, *tasks, "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("parameters", style="dim", overflow="fold")
    for record in records:
        table.add_row(
            record.key,
            str(record.state),
            *(["*" if record.key in front else ""] if len(objectives) > 1 else []),
            number(record.score),
            *(_MEASURED[name](record.measured[name]) if name in record.measured else "–" for name in beside),
            *(number(record.task_scores.get(task)) for task in tasks),
            "" if record.seconds is None else f"{record.seconds:.0f} s",
            _parameters(record),
            style="bold green" if best and record.key == best.key else None,
        )
    return table


def _parameters(record: TrialRecord) -> str:
    """What the search space chose, and of each exchange of a population what the trial went on with."""
    shown = [_listed(record.parameters)]
    for each in record.exchanges:
        shown.append(f"from {each['donor']} after epoch {each['epoch']}: {_listed(each['parameters'])}")
    return "; ".join(shown)


def _listed(parameters: Mapping[str, Scalar]) -> str:
    return " ".join(f"{name}={short(value)}" for name, value in sorted(parameters.items()))


_MEASURED: Mapping[Objective, Callable[[float], str]] = {
    "gain": lambda value: f"{value:+.4f}",
    "parameters": lambda value: f"{value:,.0f}",
    "disk": lambda value: f"{value / 1e6:,.1f} MB",
}


def number(value: float | None) -> str:
    """A score to four digits, or a dash."""
    return "–" if value is None else f"{value:.4f}"


def short(value: object) -> str:
    """A parameter as it reads best in a table."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def best_so_far(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial with the best score that any has reported, whether it has ended or not."""
    return max((r for r in records if r.score is not None), key=lambda r: r.score or 0.0, default=None)


def cut_off(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The records of a study that nobody runs: what its store keeps as running, to be resumed, was interrupted."""
    return [
        dataclasses.replace(record, state=TrialState.INTERRUPTED) if record.state is TrialState.RUNNING else record
        for record in records
    ]


def summary(records: Sequence[TrialRecord], *, total: int, best: TrialRecord | None) -> str:
    """Trials done, running and interrupted, and the best, in one line."""
    running = sum(r.state is TrialState.RUNNING for r in records)
    interrupted = sum(r.state is TrialState.INTERRUPTED for r in records)
    stopped = sum(r.state is TrialState.STOPPED for r in records)
    failed = sum(r.state is TrialState.FAILED for r in records)
    early = ", ".join(f"{number} {what}" for number, what in ((stopped, "stopped early"), (failed, "failed")) if number)
    done = f"{len(records) - running - interrupted} of {counted(total, 'trial')} done"
    parts = [f"{done} ({early})" if early else done, f"{running} running"]
    if interrupted:
        parts.append(f"{interrupted} interrupted")
    parts.append(f"best {number(best.score)} ({best.key})" if best else "best –")
    return ", ".join(parts)


class Progress:
    """Shows a study's records while it runs. Call it after every event; it reads and redraws at most twice a second.

    Args:
        read: the study's records.
        total: how many trials the study will have.
        tasks: the study's tasks, in its order.
        folds: of each trial; none where it has epochs. What a trial reports after a fold is the mean of those so far.
        evals_per_epoch: of the study; a trial without folds reports after each.
        objectives: the study's.
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
        # Means of unlike many folds cannot be compared: the best would go down as a trial goes on.
        self._best = best_so_far if folds is None else best_trial
        self._console, self._read, self._total, self._tasks = console, read, total, tasks
        self._objectives = objectives
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._drawn = 0.0
        self._told: dict[str, tuple[TrialState, int]] = {}

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
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
        if time.monotonic() - self._drawn >= REFRESH_SECONDS:
            self._show()

    def _show(self) -> None:
        records = list(self._read())
        if self._live:
            best = self._best(records)
            title = summary(records, total=self._total, best=best)
            front = pareto_front(records, self._objectives)
            given: dict[str, Any] = {"objectives": self._objectives, "front": front}
            table = trials_table(records[-SHOWN:], tasks=self._tasks, best=best, title=title, **given)
            self._live.update(table, refresh=True)
        else:
            self._tell(records)
        self._drawn = time.monotonic()

    def _tell(self, records: Sequence[TrialRecord]) -> None:
        """A line for every trial that started, reported or ended since the last look."""
        standing = summary(records, total=self._total, best=self._best(records))
        for record in records:
            now = (record.state, len(record.scores_by_epoch))
            if self._told.get(record.key) == now:
                continue
            self._told[record.key] = now
            epoch = max(record.scores_by_epoch, default=0)
            line = f"{record.key} {record.state}"
            if epoch:
                line += f", {self._reached(record, epoch)}"
            if record.reason:
                line += f": {record.reason}"
            self._console.print(f"{line} | {standing}", soft_wrap=True, highlight=False)

    def _reached(self, record: TrialRecord, epoch: int) -> str:
        """What a trial reported last, and its best where that is another."""
        last, best = number(record.scores_by_epoch[epoch]), number(record.score)
        if self._folds is None:
            epochs = round(epoch / self._evals_per_epoch, 2)
            return f"epoch {epochs:g}, score {last}" + (f" (best {best})" if best != last else "")
        if record.state is TrialState.FINISHED:
            return f"{counted(self._folds, 'fold')}, score {best}"
        return f"fold {epoch} of {self._folds}, mean score {last}"
