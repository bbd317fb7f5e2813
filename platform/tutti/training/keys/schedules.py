"""Schedules that follow the evaluations of a trial: their rate depends on its scores, not on the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import SchedulerType, TrainingArguments
from transformers.optimization import GreedyLR

EVALUATED = ("reduce_lr_on_plateau", "greedy")


def arguments_of(fields: Mapping[str, Any]) -> TrainingArguments:
    """``TrainingArguments(**fields)``, also with a schedule that follows evaluations.

    transformers refuses those without an ``eval_strategy``, which Tutti, who evaluates by itself, does not use.
    """
    if (schedule := fields.get("lr_scheduler_type")) not in EVALUATED:
        return TrainingArguments(**fields)
    args = TrainingArguments(**{**fields, "lr_scheduler_type": "constant"})
    args.lr_scheduler_type = SchedulerType(schedule)
    return args


def schedule_of(args: TrainingArguments) -> str:
    """The name of the schedule."""
    return str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))


def schedule_settings(args: TrainingArguments, *, best_by: str) -> dict[str, Any]:
    """The settings of the schedule: the user's, those of one that follows evaluations over these defaults.

    ``mode`` says whether higher values are better. ``threshold_mode: rel``, torch's default, would take every score
    below 0 for an improvement. GreedyLR's own ``min_lr`` is above the rates that encoders are trained with.
    """
    settings = dict(args.lr_scheduler_kwargs or {})
    if schedule_of(args) not in EVALUATED:
        return settings
    defaults = {"mode": "min" if best_by == "loss" else "max", "threshold_mode": "abs", "min_lr": 0.0}
    return defaults | settings


def follow(schedule: Any, value: float) -> None:
    """Tells a schedule that follows evaluations of one, by which it may change the rate; others do not care."""
    if isinstance(schedule, ReduceLROnPlateau | GreedyLR):
        schedule.step(value)
