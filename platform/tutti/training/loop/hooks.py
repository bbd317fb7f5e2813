"""Connects the trainer's methods to the events of the training loop of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

if TYPE_CHECKING:
    from tutti.training.loop.trainer import MultiTaskTrainer


class TrainerHooks(TrainerCallback):
    """Calls the trainer at each event, and has it log and save where an evaluation or a state is due."""

    def __init__(self, trainer: MultiTaskTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._trainer.meter.start()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._trainer.before_step()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._trainer.after_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        every = self._trainer.options.state_steps
        due = self._trainer.evaluates or (every and state.global_step % every == 0)
        if due and not self._trainer.epoch_ended:
            # Logged as well, since a state does not contain the sums of the values to be logged.
            control.should_log = control.should_save = True

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any
    ) -> None:
        state.log_history.clear()  # each training state would repeat all of it; reports have the values
        if "loss" in logs:
            self._trainer.check_finite()
            names: tuple[str, ...] = ("loss", "grad_norm", "learning_rate")
            values = {name: float(logs[name]) for name in names if name in logs}
            self._trainer.logged.append((state.global_step, values))

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not self._trainer.stopped:  # else it was logged and saved within the epoch
            control.should_log = control.should_save = True
