"""The messages between Ray Tune, the broker and the workers: trial configs one way, reports the other.

At run time all of them are plain dicts, as Ray Tune requires. A key that does not apply to a message is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, cast

from tutti.records import Scalar
from tutti.search.trial_attributes import Proposal, Resumption


class TrialConfig(TypedDict):
    """What Ray Tune, the broker and the workers know of a trial.

    Attributes:
        key, number, parameters, resumption, optuna_number: as of a ``Proposal``.
    """

    key: str
    number: int
    parameters: Mapping[str, Scalar]
    resumption: Resumption
    optuna_number: int


class Evaluation(TypedDict, total=False):
    """One evaluation, after an epoch or a part of one.

    Attributes:
        epoch: evaluations, or complete folds, so far. Schedulers compare trials by ``epoch`` and ``score``.
        set_scores: by ``TASK/SET``, the score on each report set that was evaluated.
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
    set_scores: Mapping[str, float]
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
        done: Tune ends the trial with this report.
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
    done: bool


def trial_config(proposal: Proposal) -> TrialConfig:
    """The config of a proposed trial."""
    return cast(TrialConfig, dict(vars(proposal)))


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


def learnt(known: Resumption, report: Report) -> Resumption:
    """What a resumption has to know of a trial after a report, except for its seconds.

    Args:
        known: the same before the report.
        report: as the driver gets it of Tune, which adds ``done``, or as the workers send it.
    """
    if "halved" in report:
        return replace(known, halved=report["halved"], fitted=False, in_new_stage=False)
    if "exchanged" in report:
        return known.exchanged(report["exchanged"])
    if completes_epoch(report):
        known = replace(known, fitted=True, in_new_stage=begins_stage(report))
    if "fold_epoch" in report:
        return replace(known, fold=report["fold"])
    is_stopping = report.get("done") and "score" in report and not report.keys() & {"final", "failed", "stopped"}
    return replace(known, stopping=int(report["epoch"])) if is_stopping else known
