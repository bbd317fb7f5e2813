"""Tells the caller of ``fine_tune`` about each step, and about training keys that can do less than they ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tutti.training.keys.schedules import EVALUATED, schedule_of
from tutti.training.loop.trainer import MultiTaskTrainer

_WITHOUT_WARMUP = ("constant", *EVALUATED)  # schedules that do not read warmup_steps
_PATIENCE = 10  # of the schedules that follow evaluations, by default


class StageCallback(TrainerCallback):
    """Calls ``on_step`` after each step without an evaluation, and ``on_notice`` where a stage begins."""

    def __init__(
        self, trainer: MultiTaskTrainer, on_step: Callable[[], None], on_notice: Callable[[str], None]
    ) -> None:
        self._trainer, self._on_step, self._on_notice = trainer, on_step, on_notice

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == 0:  # a run that resumes within the stage has given its notices before
            for notice in _notices(self._trainer, args, state.max_steps):
                self._on_notice(notice)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if not self._trainer.evaluates:
            self._on_step()


def _notices(trainer: MultiTaskTrainer, args: TrainingArguments, steps: int) -> Iterator[str]:
    """What the keys of a stage of ``steps`` steps cannot do, which only the number of steps tells."""
    schedule = schedule_of(args)
    if (warmup := args.get_warmup_steps(steps)) > steps and schedule not in _WITHOUT_WARMUP:
        share = f"{steps / warmup:.0%} of learning_rate"
        yield f"warmup_steps is {warmup}, but the stage has {steps} steps: its rate only rises, to {share}; lower it"
    if (asked := trainer.evals_per_epoch) > (per_epoch := trainer.steps_per_epoch):
        yield f"evals_per_epoch is {asked}, but an epoch has {per_epoch} steps, and is evaluated as often; lower it"
    evaluations = trainer.evaluations_after(steps)
    if (patience := trainer.options.early_stopping_patience or 0) >= evaluations:
        yield f"early_stopping_patience is {patience}, but the stage has {evaluations} evaluations: it ends none early"
    waits = (args.lr_scheduler_kwargs or {}).get("patience", _PATIENCE)
    if schedule in EVALUATED and waits >= evaluations:
        yield (
            f"{schedule} changes the rate after more than {waits} evaluations alike, but the stage has {evaluations}: "
            f"it stays as it is; lower lr_scheduler_kwargs.patience, or raise evals_per_epoch"
        )
