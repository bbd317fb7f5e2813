"""transformers.Trainer with batches of one task each and a loss normalised over the global batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tutti.config.training import TrainingOptions
from tutti.data.batches import BatchPlan, BatchRows, TaskBatchSampler, TaskRows
from tutti.data.encode import EncodedPart
from tutti.errors import Fault, TrialError
from tutti.modeling.model import MultiTaskModel
from tutti.tasks.task import Task
from tutti.training.adversarial import make_attack
from tutti.training.arguments import fits_the_machine
from tutti.training.averages import make_average
from tutti.training.balance import make_balance
from tutti.training.losses import class_weights, divergences, row_errors, row_losses, twice
from tutti.training.one_device import OneDeviceTrainer
from tutti.training.precision import autocast
from tutti.training.ranks import lowest, summed, world_size
from tutti.training.rates import decayed_names, parameter_groups
from tutti.training.sharding import shard_on_cpu

_NEVER = torch.iinfo(torch.int64).max  # the step of a loss that was finite throughout


class MultiTaskTrainer(OneDeviceTrainer):
    """Trains one encoder and its heads; after each evaluation and at the steps that ask for it, it calls ``save``.

    The loss of an optimizer step is that of all its rows, over all ranks and all accumulated batches, weighted and
    divided by their total weight. So 2 workers with batch b give the loss, gradients and weights of one worker with
    batch 2b, and so do 2 accumulation steps of one task; of several, each step's batch is one task's.

    Args:
        parts: task to its training rows, which have labels.
        options: the tricks that are switched on.
        stage: counted from 0; each draws its batches in an order of its own.
        parameters: what a TrialError names when the loss is no longer finite.
        save: called on every rank, after the step was logged.
    """

    loss_is_scaled_for_ga = True  # compute_loss divides by the weight of all accumulated batches itself
    model: MultiTaskModel

    def __init__(
        self,
        *,
        model: MultiTaskModel,
        args: TrainingArguments,
        tasks: Sequence[Task],
        parts: Mapping[str, EncodedPart],
        options: TrainingOptions,
        stage: int,
        parameters: Mapping[str, Any],
        save: Callable[[MultiTaskTrainer], None],
    ) -> None:
        self._options, self._stage, self.evals_per_epoch = options, stage, options.evals_per_epoch
        self._tasks = {task.name: task for task in tasks}
        weights = {task.name: _row_weights(task, parts[task.name], options) for task in tasks}
        self._batch_rows = {name: BatchRows(lengths=parts[name].lengths, weights=own) for name, own in weights.items()}
        self._multiple = 8 if args.device.type == "cuda" else 1
        rows = TaskRows(parts, weights=weights, multiple=self._multiple, positions=model.positions)
        attention = options.attn_implementation
        super().__init__(model=model, args=args, attention=attention, train_dataset=rows, callbacks=[_Hooks(self)])
        self.remove_callback(ProgressCallback)
        self.average = make_average(model, ema_decay=options.ema_decay, swa_epochs=options.swa_epochs)
        self.balance = make_balance(options.loss_balancing, tasks, options.task_weights, device=args.device)
        self.logged: list[tuple[int, dict[str, float]]] = []
        self._attack = make_attack(options.adversarial, model, epsilon=options.adversarial_epsilon)
        self._attacking = False
        self._parameters = dict(parameters)
        self._save_state = save
        self._finite = torch.ones((), dtype=torch.bool, device=args.device)
        self._first_bad = torch.full((), _NEVER, device=args.device)
        # Of each task's rows the loss and the weight; last the sum of all that was minimised, and the steps.
        self._sums = torch.zeros(len(tasks) + 1, 2, dtype=torch.float64, device=args.device)
        self._index = {name: index for index, name in enumerate(self._tasks)}

    def create_accelerator_and_postprocess(self) -> None:
        """Accelerate's, with FSDP on CPUs too."""
        super().create_accelerator_and_postprocess()
        shard_on_cpu(self)

    def _prepare_for_training(self, *given: Any, **named: Any) -> Any:
        """What Trainer does before its first step; where that has sharded the model, its parameters are others now."""
        prepared = super()._prepare_for_training(*given, **named)
        if self.is_fsdp_enabled:
            options, before = self._options, self.average
            self._attack = make_attack(options.adversarial, self.model, epsilon=options.adversarial_epsilon)
            self.average = make_average(self.model, ema_decay=options.ema_decay, swa_epochs=options.swa_epochs)
            if self.average is not None and before is not None:
                self.average.load_state_dict(before.state_dict())
        return prepared

    def get_train_dataloader(self) -> DataLoader:
        """Not prepared by accelerate, which would share the batches out a second time."""
        args, options = self.args, self._options
        plan = BatchPlan(
            per_device_batch=args.per_device_train_batch_size,
            group_by_length=options.group_by_length,
            max_tokens=options.max_tokens_per_batch,
            multiple=self._multiple,
            sampling=options.task_sampling,
            temperature=options.sampling_temperature,
            weights=options.sampling_weights,
        )
        sampler = TaskBatchSampler(
            self._batch_rows,
            plan=plan,
            seed=args.seed if args.data_seed is None else args.data_seed,
            stage=self._stage,
            rank=args.process_index,
            world=args.world_size,
        )
        self._batches = len(sampler)
        return _TaskLoader(
            self.train_dataset,
            batch_sampler=sampler,  # type: ignore[arg-type]  # yields TaskBatch, which the rows' __getitems__ takes
            collate_fn=_as_it_is,
            num_workers=args.dataloader_num_workers,
            persistent_workers=args.dataloader_persistent_workers,
            # Workers that start draw from the trial's random numbers, and those that stay start once more on resuming.
            generator=torch.Generator() if args.dataloader_persistent_workers else None,
            prefetch_factor=args.dataloader_prefetch_factor,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
        )

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Trainer's own, whatever the tasks are called."""
        return decayed_names(self.model, super().get_decay_parameter_names)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer that ``optim`` names, over groups with rates of their own.

        Raises:
            TrialError: where the optimizer makes groups of its own, as GaLore's does.
        """
        with fits_the_machine(ValueError, TypeError, ImportError):
            made: torch.optim.Optimizer = super().create_optimizer(model)
        options, beside = self._options, self.balance.parameters()
        if not (beside or options.layer_lr_decay < 1 or options.head_learning_rate):
            return made
        plain = {"params", "lr", "initial_lr", "weight_decay"}
        settings = [{key: value for key, value in group.items() if key not in plain} for group in made.param_groups]
        if any(setting != settings[0] for setting in settings) or made.state:
            what, remedy = f"optim {self.args.optim}", "choose another, or leave those keys out"
            rule = "be an optimizer with one setting for all weights beside layer_lr_decay, head_learning_rate and "
            raise TrialError(Fault(what, rule + "loss_balancing: uncertainty", "one that groups them itself", remedy))
        with fits_the_machine(ValueError):  # of an encoder whose layers cannot be told apart
            groups = parameter_groups(
                self.model,
                decayed=set(self.get_decay_parameter_names(self.model)),
                learning_rate=self.args.learning_rate,
                weight_decay=self.args.weight_decay,
                layer_decay=options.layer_lr_decay,
                head_rate=options.head_learning_rate,
                beside=beside,
            )
        made.param_groups[:] = [{**settings[0], **group} for group in groups]
        return made

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The schedule that ``lr_scheduler_type`` names.

        Raises:
            TrialError: where it lacks a setting.
        """
        with fits_the_machine(ValueError, TypeError):
            return super().create_scheduler(num_training_steps, optimizer)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Trainer's own; rates and decay stay this trial's where the state is one of a trial that had others."""
        assert self.optimizer is not None
        own = [(_rate(group), group.get("weight_decay")) for group in self.optimizer.param_groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        for group, (rate, decay) in zip(self.optimizer.param_groups, own, strict=True):
            if decay is not None:
                group["weight_decay"] = decay
            if _rate(group) != rate:
                group["lr"] *= rate / _rate(group)
                group["initial_lr"] = rate
        schedule: Any = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        if hasattr(schedule, "base_lrs"):
            schedule.base_lrs = [rate for rate, _ in own]

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """One pass, and where an attack is on a second against it, whose gradients are added."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._attack is not None and (self.state.epoch or 0) >= self._options.adversarial_start:
            self._attacking = True
            with self._attack.perturbed():
                super().training_step(model, inputs, num_items_in_batch)
            self._attacking = False
        return loss

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: float | None = None,
    ) -> Any:
        """This rank's share of the loss, times the ranks, since DDP and the log both take the mean over ranks."""
        inputs = dict(inputs)
        labels, weights, weight_sum = inputs.pop("labels"), inputs.pop("weights"), inputs.pop("weight_sum")
        task = inputs.pop("task")
        if self._options.rdrop_alpha:
            inputs = twice(inputs)
        with autocast(self.args) if self.is_fsdp_enabled else nullcontext():  # accelerate wraps other models in it
            outputs = model(task, **inputs).float()
        per_weight = self.args.world_size / (num_items_in_batch or weight_sum)
        own = (self._row_losses(task, outputs, labels) * weights).sum()
        share = weight_sum / (num_items_in_batch or weight_sum)
        loss = self.balance(task, own * per_weight, share)
        self._finite &= loss.detach().isfinite()
        if not self._attacking:
            self._sums[self._index[task], 0] += own.detach()
            self._sums[self._index[task], 1] += weights.sum()
            self._sums[-1, 0] += loss.detach()
        return (loss, outputs) if return_outputs else loss

    def _row_losses(self, task: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """``(rows,)``; with R-Drop half of the paper's loss, of outputs that have every row twice."""
        alpha = self._options.rdrop_alpha
        if not alpha:
            return self._plain_losses(task, outputs, labels)
        one, other = outputs.chunk(2)
        plain = (self._plain_losses(task, one, labels) + self._plain_losses(task, other, labels)) / 2
        if self._tasks[task].regression:
            return plain + alpha / 2 * row_errors(one, other.squeeze(1), scale=self.model.head(task).scale)
        return plain + alpha / 2 * divergences(one, other)

    def _plain_losses(self, task: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self._tasks[task].regression:
            return row_errors(outputs, labels, scale=self.model.head(task).scale)
        smoothing = self.args.label_smoothing_factor
        return row_losses(outputs, labels, smoothing=smoothing, focal_gamma=self._options.focal_gamma)

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, Any]], device: torch.device) -> float | None:
        return sum(batch["weight_sum"] for batch in batch_samples) or None

    def before_step(self) -> None:
        """Notes a loss that is not finite, and raises as ``check_finite`` does where that waits for no GPU."""
        self._sums[-1, 1] += 1
        step = self._first_bad.clamp(max=self.state.global_step + 1)
        self._first_bad = torch.where(self._finite, self._first_bad, step)
        if self._checks_each_step:
            self.check_finite()
        for weight in self.balance.parameters():  # DDP knows the model's own parameters only
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            if world_size() > 1:
                dist.all_reduce(weight.grad)
                weight.grad /= world_size()

    @property
    def _checks_each_step(self) -> bool:
        """A GPU would be waited for at each: there it is before a step is logged or a state saved."""
        return self.args.device.type != "cuda"

    def check_finite(self) -> None:
        """Raises on every rank where the loss of a step was not finite on any.

        Raises:
            TrialError: naming the first such step and the parameters.
        """
        first = lowest(self._first_bad.clone()).item()
        if first < _NEVER:
            raise self.diverged(f"the training loss at step {first}")

    def diverged(self, what: str) -> TrialError:
        """The error that ends the trial where ``what`` is not finite; it names the parameters."""
        parameters = ", ".join(f"{name}={value}" for name, value in self._parameters.items()) or "the defaults"
        remedy = "lower the learning_rate or set max_grad_norm"
        return TrialError(Fault(what, "be a finite number", f"nan or infinity with {parameters}", remedy))

    def after_step(self) -> None:
        """Takes the new weights into their average."""
        for weight in self.balance.parameters():
            weight.grad = None
        if self.average is not None:
            self.average.after_step()

    def take_train_losses(self) -> tuple[float, dict[str, float]]:
        """Of the epoch so far: the mean of what the steps minimised, and each task's mean loss over its rows.

        At its end they are taken for the last time.
        """
        sums = summed(self._sums.clone())
        world = self.args.world_size
        mean = sums[-1, 0].item() / max(self._sums[-1, 1].item(), 1) / world
        by_task = {name: (sums[i, 0] / sums[i, 1].clamp(min=1e-12)).item() for name, i in self._index.items()}
        if self.epoch_ended:
            self._sums.zero_()
        return mean, by_task

    def loss_sums(self) -> list[list[float]]:
        """What a state in the middle of an epoch must keep of it: this rank's own sums, which ``load_sums`` takes."""
        return self._sums.tolist()

    def load_sums(self, sums: list[list[float]]) -> None:
        """Goes on from ``loss_sums``."""
        self._sums.copy_(torch.tensor(sums, dtype=torch.float64))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        """The weights are in the model already."""

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        self.check_finite()
        self._save_state(self)

    @property
    def epoch_ended(self) -> bool:
        """Whether the step that was just taken is an epoch's last, or the run's."""
        epoch = self.state.epoch or 0.0
        return abs(epoch - round(epoch)) < 1e-9 or self.state.global_step >= self.state.max_steps

    @property
    def evaluations(self) -> int:
        """How many the stage has by the step that was just taken; at its end a part of one counts too."""
        return self._evaluations_after(self.state.global_step)

    @property
    def evaluates(self) -> bool:
        """Whether the step that was just taken is followed by an evaluation."""
        return self.epoch_ended or self.evaluations > self._evaluations_after(self.state.global_step - 1)

    def _evaluations_after(self, steps: int) -> int:
        an_epoch = max(math.ceil(self._batches / self.args.gradient_accumulation_steps), 1)
        whole, begun = divmod(steps * self.evals_per_epoch, an_epoch)
        return whole + (begun > 0 and steps >= self.state.max_steps)


class _Hooks(TrainerCallback):
    """Ties the trainer's own work to the loop's events."""

    def __init__(self, trainer: MultiTaskTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._trainer.before_step()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._trainer.after_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        every = self._trainer._options.state_steps
        due = self._trainer.evaluates or (every and state.global_step % every == 0)
        if due and not self._trainer.epoch_ended:
            control.should_log = control.should_save = True  # logged too: what is summed for the log is in no state

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any
    ) -> None:
        if "loss" in logs:
            self._trainer.check_finite()
            values: dict[str, float] = {
                name: float(logs[name]) for name in ("loss", "grad_norm", "learning_rate") if name in logs
            }
            self._trainer.logged.append((state.global_step, values))

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_log = control.should_save = True


def _rate(group: Mapping[str, Any]) -> float:
    return float(group.get("initial_lr", group["lr"]))


def _row_weights(task: Task, part: EncodedPart, options: TrainingOptions) -> np.ndarray:
    if options.class_weights is None or task.regression:
        return part.weights
    labels = part.labels if part.targets is None else part.targets
    assert labels is not None
    return class_weights(labels, part.weights)


class _TaskLoader(DataLoader):
    def set_epoch(self, epoch: int) -> None:
        """What Trainer calls at the start of each epoch, counted from 0."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


def _as_it_is(batch: Any) -> Any:
    return batch
