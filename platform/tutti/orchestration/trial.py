"""One trial, as the workers of a pool train it and tell of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.orchestration.broker import ANEW, FINAL, HALVED, NOTICE, OVERTIME
from tutti.search.limits import SECONDS
from tutti.tracking.protocol import FOLD_SCORE

if TYPE_CHECKING:
    from tutti.training import EpochReport


LOOK_SECONDS = 10.0
"""Between two looks of a trial at its clock while it trains. Ranks look together, so that they end at the same step."""


class Stopped(Exception):
    """The study needs no more of a trial."""


def train_trial(
    study: StudyConfig, folder: StudyFolder, trial: Mapping[str, Any], *, tell: Callable[[dict[str, Any]], bool]
) -> None:
    """Trains one trial on every rank, from its last state if it has one.

    Args:
        trial: key, number and parameters; ``HALVED`` where its batches are halved, ``ANEW`` where it begins
            anew, whatever states it has.
        tell: called on every rank with each report, of which rank 0's counts; says on every rank whether to go on.

    Raises:
        Stopped: on every rank, where ``tell`` says not to.
        TrialError: on every rank, as ``fine_tune_once`` raises it.
    """
    from tutti.orchestration.build import fine_tune_once
    from tutti.orchestration.folds import FoldReport, forget_states
    from tutti.training.ranks import from_rank_zero, rank

    if trial.get(ANEW):  # those in the middle of an epoch count steps of the whole batch
        from_rank_zero(lambda: forget_states(folder.trial(trial["key"])))
    began = time.time()
    last: dict[str, Any] = {}  # stays empty where a trial went on from a state saved after its last epoch

    def say(result: dict[str, Any]) -> None:
        if not tell(signed(result)):
            raise Stopped

    def signed(result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "began": began, "at": time.time(), "host": socket.gethostname()}

    def on_epoch(report: EpochReport) -> None:
        last.update(_epoch(report))
        if not report.done:  # the last epoch is reported once its predictions lie in the bank: the trial is whole then
            say(last)

    def on_fold_epoch(fold: int, report: EpochReport) -> None:
        # Below a key of its own: a scheduler looks for `epoch` and `score`, and must see those of whole folds alone.
        say({"fold": fold, "fold_epoch": _epoch(report)})

    def on_fold(report: FoldReport) -> None:
        last.update(
            epoch=report.fold + 1,
            score=report.score,
            task_scores=dict(report.task_scores),
            metrics={FOLD_SCORE: report.best.score},
            fold=report.fold,
            fold_best={
                "score": report.best.score,
                "epoch": report.best.epoch,
                "task_scores": dict(report.best.task_scores),
            },
        )
        if not report.done:
            say(last)

    checkpoint = fine_tune_once(
        study,
        folder,
        key=trial["key"],
        number=trial["number"],
        parameters=trial["parameters"],
        on_epoch=on_epoch,
        on_fold_epoch=on_fold_epoch,
        on_fold=on_fold,
        on_notice=lambda text: say({NOTICE: text}),
        on_step=_clock(study.search.max_trial_hours, lambda: say({OVERTIME: True})),
        main=rank() == 0,
        smaller_batches=HALVED in trial,
    )
    final = {
        **last,
        FINAL: True,
        "best_score": checkpoint.score,
        "best_epoch": checkpoint.epoch,
        "best_task_scores": dict(checkpoint.task_scores),
        "checkpoint": checkpoint.path,
        "parameters": checkpoint.parameters,
    }
    tell(signed(final))


def _clock(hours: float | None, over: Callable[[], None]) -> Callable[[], None]:
    """What a trial does after a step: every now and then it looks whether its ``hours``, which begin now, are over."""
    from tutti.training.ranks import from_rank_zero

    if hours is None:
        return lambda: None
    ends, looked, steps, left = time.monotonic() + hours * SECONDS, time.monotonic(), 1, 1

    def look() -> tuple[bool, int]:
        """Whether they are over, and after how many steps to look again, by the pace since the last look."""
        now = time.monotonic()
        return now >= ends, max(int(steps * LOOK_SECONDS / max(now - looked, 1e-3)), 1)

    def on_step() -> None:
        nonlocal looked, steps, left
        left -= 1
        if left == 0:
            past, left = from_rank_zero(look)
            looked, steps = time.monotonic(), left
            if past:
                over()

    return on_step


def _epoch(report: EpochReport) -> dict[str, Any]:
    """What is told of one epoch or part of one."""
    return {
        "epoch": report.epoch,
        "score": report.score,
        "task_scores": dict(report.task_scores),
        "metrics": dict(report.metrics),
        "steps": [(step, dict(values)) for step, values in report.steps],
        "precision": report.precision,
        "whole": report.whole,
    }
