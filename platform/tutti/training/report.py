"""What a fine-tuning run tells its caller, epoch by epoch and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tutti.records import CheckpointRecord, Predictions


@dataclass(frozen=True)
class EpochReport:
    """One epoch or part of one, given after its state is safely on disk. The same on every rank.

    Attributes:
        epoch: counted from 1, over all stages; with ``evals_per_epoch`` n, its parts are counted, n to an epoch.
        score: the mean of ``task_scores``.
        task_scores: per task, its own metric on the validation rows.
        metrics: ``train_loss`` (mean over the epoch's steps so far of what they minimise), and per task
            ``TASK/train_loss`` (mean over its rows before tasks are balanced), and on its validation rows
            ``TASK/loss``, ``TASK/macro_f1``, ``TASK/accuracy`` and ``TASK/METRIC`` for the task's own metric; of a
            regression the loss is the mean squared error.
        steps: what was logged since the report before, as (step, values): ``loss``, ``grad_norm``,
            ``learning_rate``; steps are counted over all stages.
        seconds: wall time of training, evaluating and saving since then.
        whole: whether the run has trained a whole epoch by then, and so seen its longest rows.
        done: whether it is the last.
        precision: what the stage trains in: ``bf16``, ``fp16``, ``tf32`` or ``float32``.
    """

    epoch: int
    score: float
    task_scores: Mapping[str, float]
    metrics: Mapping[str, float]
    steps: tuple[tuple[int, Mapping[str, float]], ...]
    seconds: float
    whole: bool
    done: bool
    precision: str


@dataclass(frozen=True)
class FineTuned:
    """The best checkpoint of a run and what it predicts, by task and part. The same on every rank."""

    checkpoint: CheckpointRecord
    predictions: Mapping[str, Mapping[str, Predictions]]
