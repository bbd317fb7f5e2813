"""Trains one trial on the workers of a pool and reports its progress."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import TrialError, TrialMemoryError
from tutti.orchestration.broker.messages import Evaluation, Report, TrialConfig
from tutti.orchestration.worker.trial_listener import TrialListener
from tutti.records import CheckpointRecord, Usage
from tutti.search.limits import SECONDS_PER_HOUR
from tutti.tracking.protocol import FOLD_SCORE

if TYPE_CHECKING:
    from tutti.orchestration.worker.folds import FoldReport
    from tutti.training import EpochReport

CHECK_SECONDS = 10.0
"""Time between two checks of ``max_trial_hours`` during training. All ranks check after the same step, so that they
stop together."""


class Stopped(Exception):
    """The study has stopped the trial."""


def train_trial(
    study: StudyConfig, folder: StudyFolder, config: TrialConfig, *, tell: Callable[[Report], bool]
) -> None:
    """Trains one trial on every rank, from its last saved state if there is one.

    A trial that would end in the same way at another attempt reports its failure.

    Args:
        tell: sends a report and returns, on every rank alike, whether to continue. Every rank calls it; the report of
            rank 0 is used.

    Raises:
        Stopped: on every rank, if ``tell`` returns false.
    """
    from tutti.orchestration.worker.build import fine_tune_once
    from tutti.orchestration.worker.folds import delete_states
    from tutti.training.machine.ranks import from_rank_zero, rank

    known = config["resumption"]
    if known.begins_anew:  # a state within an epoch counts steps of the whole batch
        from_rank_zero(lambda: delete_states(folder.trial(config["key"])))
    reporter = Reporter(tell, max_hours=study.search.max_trial_hours)
    try:
        checkpoint = fine_tune_once(
            study,
            folder,
            key=config["key"],
            number=config["number"],
            parameters=config["parameters"],
            listener=reporter,
            main=rank() == 0,
            smaller_batches=known.halved is not None,
        )
    except TrialError as error:  # raised on every rank alike
        reporter.fail(error)
    else:
        reporter.finish(checkpoint)


class Reporter(TrialListener):
    """Reports a trial's progress, and stops it once ``max_hours`` are over or ``tell`` returns false."""

    def __init__(self, tell: Callable[[Report], bool], *, max_hours: float | None) -> None:
        self._tell = tell
        self._began, self._started = time.time(), time.monotonic()
        self._clock = None if max_hours is None else _Clock(max_hours)
        self._last: Report = {}
        self._of_folds = Usage()

    def on_epoch(self, report: EpochReport) -> None:
        self._last.update({**_evaluation(report), "usage": asdict(report.usage)})
        if not report.done:  # finish() reports the last epoch, once its predictions are in the bank
            self._send(self._last)

    def on_fold_epoch(self, fold: int, report: EpochReport) -> None:
        usage = asdict(self._of_folds + report.usage)
        self._send({"fold": fold, "fold_epoch": _evaluation(report), "usage": usage})

    def on_fold(self, report: FoldReport) -> None:
        best, self._of_folds = report.best, report.usage
        fold_report: Report = {
            "epoch": report.fold + 1,
            "score": report.score,
            "task_scores": dict(report.task_scores),
            "metrics": {FOLD_SCORE: best.score},
            "usage": asdict(report.usage),
            "fold": report.fold,
            "fold_best": {"score": best.score, "epoch": best.epoch, "task_scores": dict(best.task_scores)},
        }
        self._last.update(fold_report)
        if not report.done:
            self._send(self._last)

    def on_notice(self, text: str) -> None:
        self._send({"notice": text})

    def on_step(self) -> None:
        if self._clock is not None and self._clock.has_run_out():
            self._send({"overtime": True})

    def finish(self, checkpoint: CheckpointRecord) -> None:
        """Sends the final report."""
        final: Report = {
            **self._last,
            "final": True,
            "best_score": checkpoint.score,
            "best_epoch": checkpoint.epoch,
            "best_task_scores": dict(checkpoint.task_scores),
            "parameters": checkpoint.parameters,
        }
        self._tell(self._stamped(final))

    def fail(self, error: TrialError) -> None:
        """Sends the failure as the last report."""
        failed: Report = {"failed": str(error)}
        if isinstance(error, TrialMemoryError):
            failed["infeasible"] = True
        self._tell(self._stamped(failed))

    def _send(self, report: Report) -> None:
        if not self._tell(self._stamped(report)):
            raise Stopped

    def _stamped(self, report: Report) -> Report:
        at = self._began + time.monotonic() - self._started  # a machine's sleep, or a clock that is set, is no training
        return {**report, "began": self._began, "at": at, "host": socket.gethostname()}


class _Clock:
    """Measures a trial's time from now on. Reads the time after some steps only, since ranks synchronize for it."""

    def __init__(self, hours: float) -> None:
        self._end = time.monotonic() + hours * SECONDS_PER_HOUR
        self._last_check = time.monotonic()
        self._interval = 1  # steps between the last two checks
        self._steps_left = 1

    def has_run_out(self) -> bool:
        """Whether the time was over at a check after this step; called after every step."""
        from tutti.training.machine.ranks import from_rank_zero

        self._steps_left -= 1
        if self._steps_left:
            return False
        is_over, self._steps_left = from_rank_zero(self._check)
        self._last_check, self._interval = time.monotonic(), self._steps_left
        return is_over

    def _check(self) -> tuple[bool, int]:
        """Whether the time is over, and after how many steps to check again at the pace since the last check."""
        now = time.monotonic()
        return now >= self._end, max(int(self._interval * CHECK_SECONDS / max(now - self._last_check, 1e-3)), 1)


def _evaluation(report: EpochReport) -> Evaluation:
    return {
        "epoch": report.epoch,
        "score": report.score,
        "task_scores": dict(report.task_scores),
        "set_scores": dict(report.set_scores),
        "metrics": dict(report.metrics),
        "steps": [(step, dict(values)) for step, values in report.steps],
        "precision": report.precision,
        "whole": report.whole,
        "ends_stage": report.ends_stage,
        "repeated": report.repeated,
        "evaluated": report.at,
    }
