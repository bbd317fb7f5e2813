"""What a fine-tuning run tells its caller, epoch by epoch and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tutti.records import CheckpointRecord, Predictions


@dataclass(frozen=True)
class EpochReport:
    """One epoch, given after its state is safely on disk. The same on every rank.

    Attributes:
        epoch: counted from 1.
        score: the mean of ``task_scores``.
        task_scores: per task, its own metric on the validation rows.
        metrics: ``train_loss`` (mean over the epoch's steps), and per task, on its validation rows,
            ``TASK/loss``, ``TASK/macro_f1``, ``TASK/accuracy`` and ``TASK/METRIC`` for the task's own metric.
        steps: what was logged in this epoch, as (step, values): ``loss``, ``grad_norm``, ``learning_rate``.
        seconds: wall time of training, evaluating and saving this epoch.
        done: whether it is the last.
    """

    epoch: int
    score: float
    task_scores: Mapping[str, float]
    metrics: Mapping[str, float]
    steps: tuple[tuple[int, Mapping[str, float]], ...]
    seconds: float
    done: bool


@dataclass(frozen=True)
class FineTuned:
    """The best checkpoint of a run and what it predicts, by task and part. The same on every rank."""

    checkpoint: CheckpointRecord
    predictions: Mapping[str, Mapping[str, Predictions]]
