"""The messages between Ray Tune, the broker and the workers: trial configs one way, reports the other.

At run time all of them are plain dicts, as Ray Tune requires. A key that does not apply to a message is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

from tutti.records import Scalar
from tutti.search.trial_attributes import FITTED, IN_NEW_STAGE, Proposal


class TrialConfig(TypedDict):
    """What Ray Tune, the broker and the workers know of a trial.

    Attributes:
        parameters: as the search space drew them.
        fold: the fold that an earlier run was training when it was interrupted.
        halved: the reason why the trial trains with half its batch size.
        fitted: an earlier attempt completed an epoch, so the batch fits into memory.
        in_new_stage: it completed no epoch of the present stage, which may need more memory than those before.
        stopping: the epoch at whose score the scheduler of an earlier run decided to stop the trial.
        trained: seconds that earlier runs trained the trial, up to their last reports.
        anew: the trial restarts from the pretrained weights; saved states are discarded.
    """

    key: str
    number: int
    parameters: Mapping[str, Scalar]
    optuna_number: NotRequired[int]
    fold: NotRequired[int]
    halved: NotRequired[str]
    fitted: NotRequired[bool]
    in_new_stage: NotRequired[bool]
    stopping: NotRequired[int]
    trained: NotRequired[float]
    anew: NotRequired[bool]


class Evaluation(TypedDict, total=False):
    """One evaluation, after an epoch or a part of one.

    Attributes:
        epoch: evaluations, or complete folds, so far. Schedulers compare trials by ``epoch`` and ``score``.
        steps: optimizer step and its training metrics, for every logged step since the last evaluation.
        precision: the numeric precision of training, such as bf16.
        whole: the stage has ended, or an epoch of the stage is complete, so it has seen its longest rows.
        ends_stage: the next stage may need more memory.
        repeated: it comes from the state that this attempt resumes from: an earlier attempt may have reported it.
        evaluated: Unix time of the evaluation, also where it is repeated.
    """

    epoch: int
    score: float
    task_scores: Mapping[str, float]
    metrics: Mapping[str, float]
    steps: Sequence[tuple[int, Mapping[str, float]]]
    precision: str | None
    whole: bool
    ends_stage: bool
    repeated: bool
    evaluated: float


class Report(Evaluation, total=False):
    """A trial's report to Ray Tune.

    Attributes:
        began: Unix time at which this attempt of the workers began.
        at: Unix time of the report.
        host: name of the node of rank 0.
        fold: zero-based fold that the report is about.
        fold_epoch: an evaluation within a fold. It is nested so that schedulers see only the scores of complete folds.
        fold_best: ``score``, ``epoch`` and ``task_scores`` of a complete fold's best evaluation.
        final: the last report of a trial that finished; its predictions are in the bank.
        best_score, best_epoch, best_task_scores: of the checkpoint that a finished trial kept.
        parameters: number of weights that the last stage trained.
        usage: the fields of the ``Usage`` of the trial's training steps so far, over all attempts.
        failed: the reason of a failure; the last report of a trial.
        infeasible: the failed trial does not fit into memory.
        notice: a sentence for the user. Sent alone.
        overtime: the trial has used up ``max_trial_hours``. Sent alone, with no new score.
        halved: why the trial restarts with half its batch size. Sent alone.
        exchanged: the fields of the ``Exchange`` that the trial continues from. Sent alone.
        stopped: why the study's stopper ends the trial with this report.
    """

    began: float
    at: float
    host: str
    fold: int
    fold_epoch: Evaluation
    fold_best: Mapping[str, Any]
    final: bool
    best_score: float
    best_epoch: int
    best_task_scores: Mapping[str, float]
    parameters: int | None
    usage: Mapping[str, Any]
    failed: str
    infeasible: bool
    notice: str
    overtime: bool
    halved: str
    exchanged: Mapping[str, Any]
    stopped: str


def trial_config(proposal: Proposal) -> TrialConfig:
    """The config of a proposed trial."""
    config = {
        "key": proposal.key,
        "number": proposal.number,
        "parameters": dict(proposal.parameters),
        "optuna_number": proposal.optuna_number,
        "fold": proposal.fold,
        "halved": proposal.halved,
        "fitted": proposal.fitted or None,
        "in_new_stage": proposal.in_new_stage or None,
        "stopping": proposal.stopping or None,
        "trained": proposal.seconds or None,
        # Until an epoch is complete, the saved states may be those of the whole batch.
        "anew": True if proposal.halved and not proposal.fitted else None,
    }
    return cast(TrialConfig, {name: value for name, value in config.items() if value is not None})


def is_last(report: Report) -> bool:
    """Whether the trial has ended by itself with this report."""
    return "final" in report or "failed" in report


def evaluation_of(report: Report) -> Evaluation:
    """The report itself, or the evaluation within a fold in it."""
    return report.get("fold_epoch", report)


def is_first(evaluation: Evaluation) -> bool:
    """Whether the evaluation is the first one since training began with pretrained weights.

    If there were others before it, training started over: with half the batch, or after files were damaged.
    """
    return evaluation["epoch"] == 1 and not evaluation.get("repeated", False)


def completes_epoch(report: Report) -> bool:
    """Whether the report proves that the batch fits into memory.

    A part of an epoch proves nothing, since it may have had only short rows; nor does a notice, which may come before
    any training.
    """
    evaluation = evaluation_of(report)
    return "epoch" in evaluation and evaluation.get("whole", True)


def begins_stage(report: Report) -> bool:
    """Whether the trial begins its next stage, for the first time.

    In a later fold the trial has been through all stages.
    """
    return evaluation_of(report).get("ends_stage", False) and not report.get("fold")


def fitted_by(report: Report) -> dict[str, bool]:
    """What the report proves of the trial's memory, as attributes to store with it; empty if nothing."""
    return {FITTED: True, IN_NEW_STAGE: begins_stage(report)} if completes_epoch(report) else {}
