"""What a fine-tuning run reports to its caller, after each evaluation and at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tutti.records import CheckpointRecord, Usage
from tutti.tasks.predictions import Predictions


@dataclass(frozen=True)
class EpochReport:
    """One evaluation, after an epoch or part of one. Sent once the training state is on disk.

    The state contains it, and a run that resumes from there sends it again: a killed run may not have sent it. It is
    equal on every rank.

    Attributes:
        epoch: number of the evaluation, from 1, over all stages; an epoch has ``evals_per_epoch`` evaluations.
        score: the study's: the mean of ``task_scores``, weighted as the tasks are.
        task_scores: per task, its own metric on the validation rows.
        set_scores: by ``TASK/SET``, the same on each report set that was evaluated.
        metrics: ``train_loss`` (mean minimised loss of the epoch's steps so far) and per task ``TASK/train_loss``
            (mean over its training rows, before loss balancing), ``TASK/loss``, ``TASK/macro_f1``, ``TASK/accuracy``
            and ``TASK/METRIC`` for the task's own metric, on its validation rows. For a regression the loss is the
            mean squared error.
        steps: values logged since the previous report, as (step, values): ``loss``, ``grad_norm``,
            ``learning_rate``; steps are counted over all stages.
        whole: whether the stage has ended, or has trained at least one whole epoch and so seen its longest rows.
        done: whether this is the run's last evaluation.
        precision: the precision of the stage: ``bf16``, ``fp16``, ``tf32`` or ``float32``.
        ends_stage: whether another stage follows, which may need more memory.
        repeated: whether it comes from the state that the run resumes from, and so may have been reported before.
        usage: what the run's training steps have taken so far.
        at: Unix time of the evaluation, also where it is repeated. Reports that differ in these two alone are equal.
    """

    epoch: int
    score: float
    task_scores: Mapping[str, float]
    metrics: Mapping[str, float]
    steps: tuple[tuple[int, Mapping[str, float]], ...]
    whole: bool
    done: bool
    precision: str
    ends_stage: bool = False
    set_scores: Mapping[str, float] = field(default_factory=dict)
    repeated: bool = False
    usage: Usage = field(default_factory=Usage, compare=False)
    at: float = field(default_factory=time.time, compare=False)


@dataclass(frozen=True)
class FineTuned:
    """The best checkpoint of a run and its predictions, by task and part.

    Equal on every rank, except that of a run with folds only rank 0 has predictions.
    """

    checkpoint: CheckpointRecord
    predictions: Mapping[str, Mapping[str, Predictions]]
