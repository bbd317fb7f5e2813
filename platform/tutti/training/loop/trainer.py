"""A transformers.Trainer for multi-task batches, with the loss normalised over the global batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import ProgressCallback, TrainingArguments

from tutti.config.training import TrainingOptions
from tutti.data.batches import WIDTHS, BatchPlan, BatchRows, TaskBatchSampler, TaskLoader, TaskRows
from tutti.data.encode import EncodedPart
from tutti.errors import Fault, TrialError
from tutti.modeling.kinds.protocol import HeadKind, LossOptions
from tutti.modeling.model import MultiTaskModel
from tutti.tasks.task import Task
from tutti.training.keys.arguments import machine_faults
from tutti.training.keys.schedules import EVALUATED, schedule_of, schedule_settings
from tutti.training.loop.hooks import TrainerHooks
from tutti.training.loop.losses import duplicate_rows, step_weights, training_losses
from tutti.training.loop.meter import Meter
from tutti.training.machine.one_device import OneDeviceTrainer
from tutti.training.machine.packed import pack
from tutti.training.machine.precision import autocast, name_of
from tutti.training.machine.ranks import lowest, summed
from tutti.training.machine.sharding import shard_on_cpu
from tutti.training.tricks.adversarial import make_attack
from tutti.training.tricks.averages import average_of
from tutti.training.tricks.balance import make_balance
from tutti.training.tricks.rates import decayed_names, parameter_groups

_NEVER = torch.iinfo(torch.int64).max  # the first step with a non-finite loss, while all losses were finite


class MultiTaskTrainer(OneDeviceTrainer):
    """Trains one encoder and its heads; calls ``save`` at each evaluation and every ``state_steps`` steps.

    Each batch holds one task. The loss of an optimizer step is the mean of its tasks' losses, by their number of
    accumulated batches; a task's loss is the weighted mean over all its rows, over all ranks. So, without a token
    budget, 2 workers with batch b give the loss, gradients and weights of one worker with batch 2b; so do 2
    accumulation steps with a single task.

    Args:
        parts: task to its training rows, which have labels.
        options: Tutti's own training options.
        stage: counted from 0; each stage draws its batches in a different order.
        parameters: the trial's parameters, named in the TrialError of a non-finite loss.
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
        self.options, self._stage, self.evals_per_epoch = options, stage, options.evals_per_epoch
        self._tasks = {task.name: task for task in tasks}
        parts = {task.name: _weighted(model.head(task.name).kind, parts[task.name], options) for task in tasks}
        self._multiple = multiple = WIDTHS.get(args.device.type, 1)
        self._batch_rows = {
            name: BatchRows(part.batch_lengths(apart=model.head(name).is_bi_encoder, multiple=multiple), part.weights)
            for name, part in parts.items()
        }
        plan = self._plan = _plan_of(args, options, multiple)
        packings = {name: plan.packing(rows.lengths, args.world_size) for name, rows in self._batch_rows.items()}
        rows = TaskRows(parts, multiple=multiple, positions=model.positions, packings=packings)
        attention = options.attn_implementation
        super().__init__(
            model=model, args=args, attention=attention, train_dataset=rows, callbacks=[TrainerHooks(self)]
        )
        self.remove_callback(ProgressCallback)
        if plan.packed:
            pack(self.model, options, name_of(self.args))
        self.average = average_of(model, options)
        self.balance = make_balance(
            options.loss_balancing, tasks, options.task_weights, device=args.device, ordered=options.ordered_head
        )
        self.meter = Meter(args.device)
        self.stopped = False
        self.logged: list[tuple[int, dict[str, float]]] = []
        self._attack = make_attack(options.adversarial, model, epsilon=options.adversarial_epsilon)
        self._attacking = False
        self.parameters = dict(parameters)
        self._save_state = save
        self._finite = torch.ones((), dtype=torch.bool, device=args.device)
        self._first_bad = torch.full((), _NEVER, device=args.device)
        # One row per task: (loss sum, weight sum). The last row: (sum of the minimised losses, steps).
        self._sums = torch.zeros(len(tasks) + 1, 2, dtype=torch.float64, device=args.device)
        self._index = {name: index for index, name in enumerate(self._tasks)}

    def create_accelerator_and_postprocess(self) -> None:
        """Also enables FSDP on CPUs, which accelerate does not."""
        super().create_accelerator_and_postprocess()
        shard_on_cpu(self)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """Rebinds the attack and the average after FSDP has replaced the model's parameters by shards."""
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self.is_fsdp_enabled:
            options, unsharded = self.options, self.average
            self._attack = make_attack(options.adversarial, self.model, epsilon=options.adversarial_epsilon)
            self.average = average_of(self.model, options)
            if self.average is not None and unsharded is not None:
                self.average.load_state_dict(unsharded.state_dict())
        return prepared

    def get_train_dataloader(self) -> DataLoader:
        """The data loader, not prepared by accelerate, which would split the batches over the ranks again."""
        args = self.args
        sampler = TaskBatchSampler(
            self._batch_rows,
            plan=self._plan,
            seed=args.seed if args.data_seed is None else args.data_seed,
            stage=self._stage,
            rank=args.process_index,
            world=args.world_size,
        )
        self._batches = len(sampler)
        persistent = args.dataloader_persistent_workers and args.dataloader_num_workers > 0
        return TaskLoader(
            self.train_dataset,
            batch_sampler=sampler,  # type: ignore[arg-type]  # yields TaskBatch, which TaskRows.__getitems__ takes
            collate_fn=_identity,
            num_workers=args.dataloader_num_workers,
            persistent_workers=persistent,
            # Starting workers consumes the trial's random numbers. Persistent workers start an additional time when a
            # run resumes, so they get a generator of their own.
            generator=torch.Generator() if persistent else None,
            prefetch_factor=args.dataloader_prefetch_factor,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
        )

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Trainer's choice of decayed parameters, made independent of the tasks' names."""
        return decayed_names(self.model, super().get_decay_parameter_names)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer named by ``optim``, with parameter groups for the options' learning rates.

        Raises:
            TrialError: if the optimizer makes its own parameter groups, as GaLore's does.
        """
        with machine_faults(ValueError, TypeError, ImportError):
            optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        options, extra_parameters = self.options, self.balance.parameters()
        if not (extra_parameters or options.layer_lr_decay < 1 or options.head_learning_rate):
            return optimizer
        per_group = {"params", "lr", "initial_lr", "weight_decay"}
        settings = [{key: own for key, own in each.items() if key not in per_group} for each in optimizer.param_groups]
        if any(setting != settings[0] for setting in settings) or optimizer.state:
            name = getattr(self.args.optim, "value", self.args.optim)
            what, remedy = f"optim {name}", "choose another, or leave those keys out"
            rule = "be an optimizer with one setting for all weights beside layer_lr_decay, head_learning_rate and "
            raise TrialError(Fault(what, rule + "loss_balancing: uncertainty", "one that groups them itself", remedy))
        with machine_faults(ValueError):  # an encoder whose layers cannot be distinguished
            groups = parameter_groups(
                self.model,
                decayed=set(self.get_decay_parameter_names(self.model)),
                learning_rate=self.args.learning_rate,
                weight_decay=self.args.weight_decay,
                layer_decay=options.layer_lr_decay,
                head_rate=options.head_learning_rate,
                extra_parameters=extra_parameters,
            )
        optimizer.param_groups[:] = [{**settings[0], **group} for group in groups]
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The schedule named by ``lr_scheduler_type``; ``follow`` steps one that follows evaluations.

        Raises:
            TrialError: if it lacks a setting.
        """
        self.args.lr_scheduler_kwargs = schedule_settings(self.args, best_by=self.options.best_by)
        with machine_faults(ValueError, TypeError):
            schedule = super().create_scheduler(num_training_steps, optimizer)
        if schedule_of(self.args) in EVALUATED:  # other schedules record the initial rates themselves
            for group in schedule.optimizer.param_groups:
                group.setdefault("initial_lr", group["lr"])
        return schedule

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Keeps this trial's learning rates and weight decay if the state comes from a trial with different ones."""
        assert self.optimizer is not None
        own_settings = [(_rate(group), group.get("weight_decay")) for group in self.optimizer.param_groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        for group, (rate, decay) in zip(self.optimizer.param_groups, own_settings, strict=True):
            if decay is not None:
                group["weight_decay"] = decay
            if _rate(group) != rate:
                group["lr"] *= rate / _rate(group)
                group["initial_lr"] = rate
        schedule: Any = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        for name in {"base_lrs", "_init_lrs"} & vars(schedule).keys():  # the latter is GreedyLR's
            setattr(schedule, name, [rate for rate, _ in own_settings])

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """A forward and backward pass; with an active attack also a perturbed pass, whose gradients are added."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._attack is not None and (self.state.epoch or 0) >= self.options.adversarial_start:
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
        num_items_in_batch: Mapping[str, float] | None = None,
    ) -> Any:
        """This rank's share of the loss times the number of ranks: DDP and the log both average over ranks."""
        inputs = dict(inputs)
        labels, weights, weight_sum, task = map(inputs.pop, ("labels", "weights", "weight_sum", "task"))
        if self._tasks[task].kind.generative:
            inputs["places"] = labels
        if self.options.rdrop_alpha:
            inputs = duplicate_rows(inputs)
        # accelerate autocasts other models
        with autocast(self.args.device, name_of(self.args)) if self.is_fsdp_enabled else nullcontext():
            outputs = model(task, **inputs).float()
        step_weight = (num_items_in_batch or {}).get(task, weight_sum)
        head = self.model.head(task)
        losses = training_losses(
            head.kind,
            outputs,
            labels,
            scale=head.scale,
            options=LossOptions(self.args.label_smoothing_factor, self.options.focal_gamma),
            rdrop_alpha=self.options.rdrop_alpha,
        )
        loss_sum = (losses * weights).sum()
        loss = self.balance(task, loss_sum * (self.args.world_size / step_weight), weight_sum / step_weight)
        self._finite &= loss.detach().isfinite()
        if not self._attacking:
            self._sums[self._index[task], 0] += loss_sum.detach()
            self._sums[self._index[task], 1] += weights.sum()
            self._sums[-1, 0] += loss.detach()
        return (loss, outputs) if return_outputs else loss

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, Any]], device: torch.device) -> dict[str, float]:
        self.meter.count(batch_samples)
        return step_weights(batch_samples)

    def before_step(self) -> None:
        """Records the first non-finite loss; except on a GPU, raises at once as ``check_finite`` does."""
        self._sums[-1, 1] += 1
        step = self._first_bad.clamp(max=self.state.global_step + 1)
        self._first_bad = torch.where(self._finite, self._first_bad, step)
        if self._checks_each_step:
            self.check_finite()
        for weight in self.balance.parameters():  # DDP averages only the gradients of the model's own parameters
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            summed(weight.grad).div_(self.args.world_size)

    @property
    def _checks_each_step(self) -> bool:
        """False on a GPU, where each check would synchronize: it checks before logging and saving instead."""
        return self.args.device.type != "cuda"

    def check_finite(self) -> None:
        """Checks that every step's loss was finite on every rank.

        Raises:
            TrialError: on every rank, naming the first step with a non-finite loss and the parameters.
        """
        first = lowest(self._first_bad.clone()).item()
        if first < _NEVER:
            raise diverged(f"the training loss at step {first}", self.parameters)

    def after_step(self) -> None:
        """Updates the weight average with the new weights."""
        for weight in self.balance.parameters():
            weight.grad = None
        if self.average is not None and not self.accelerator.optimizer_step_was_skipped:  # by fp16, unless fused
            self.average.after_step()

    def take_train_losses(self) -> tuple[float, dict[str, float]]:
        """The mean minimised loss per step of the epoch so far, and each task's mean over its rows before balancing.

        Resets the sums at the end of an epoch.
        """
        sums = summed(self._sums.clone())
        world = self.args.world_size
        mean = sums[-1, 0].item() / max(self._sums[-1, 1].item(), 1) / world
        by_task = {name: (sums[i, 0] / sums[i, 1].clamp(min=1e-12)).item() for name, i in self._index.items()}
        if self.epoch_ended:
            self._sums.zero_()
        return mean, by_task

    def loss_sums(self) -> list[list[float]]:
        """This rank's loss sums of the current epoch, which a state saved within an epoch must contain."""
        return self._sums.tolist()

    def load_sums(self, sums: list[list[float]]) -> None:
        """Restores ``loss_sums``."""
        self._sums.copy_(torch.tensor(sums, dtype=torch.float64))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        """Does nothing: ``load_state`` has put the weights into the model already."""

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        self.check_finite()  # on a GPU it also waits for the steps
        self.meter.pause()
        self._save_state(self)
        self.meter.start()

    def stop(self) -> None:
        """Ends the stage with the latest step."""
        self.stopped = self.control.should_training_stop = True

    @property
    def done(self) -> bool:
        """Whether the latest step was the last of the stage."""
        return self.stopped or self.state.global_step >= self.state.max_steps

    @property
    def epoch_ended(self) -> bool:
        """Whether the latest step was the last of an epoch or of the stage."""
        epoch = self.state.epoch or 0.0
        return abs(epoch - round(epoch)) < 1e-9 or self.state.global_step >= self.state.max_steps

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the stage up to the latest step; at its end an incomplete interval counts too."""
        return self.evaluations_after(self.state.global_step)

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation follows the latest step."""
        return self.epoch_ended or self.evaluations > self.evaluations_after(self.state.global_step - 1)

    @property
    def steps_per_epoch(self) -> int:
        return max(math.ceil(self._batches / self.args.gradient_accumulation_steps), 1)

    def evaluations_after(self, steps: int) -> int:
        """Number of evaluations of the stage up to a step."""
        complete, remainder = divmod(steps * self.evals_per_epoch, self.steps_per_epoch)
        return complete + (remainder > 0 and steps >= self.state.max_steps)


def _plan_of(args: TrainingArguments, options: TrainingOptions, multiple: int) -> BatchPlan:
    return BatchPlan(
        per_device_batch=args.per_device_train_batch_size,
        group_by_length=options.group_by_length,
        max_tokens=options.max_tokens_per_batch,
        packed=options.batching == "packed",
        multiple=multiple,
        sampling=options.task_sampling,
        temperature=options.sampling_temperature,
        weights=options.sampling_weights,
    )


def _rate(group: Mapping[str, Any]) -> float:
    return float(group.get("initial_lr", group["lr"]))


def _weighted(kind: HeadKind, part: EncodedPart, options: TrainingOptions) -> EncodedPart:
    if options.class_weights is None:
        return part
    labels = part.labels if part.targets is None else part.targets
    assert labels is not None
    weights, balanced = kind.balanced(labels, part.weights)
    return replace(part, weights=weights, targets=None if balanced is part.labels else balanced)


def _identity(batch: Any) -> Any:
    return batch


def diverged(what: str, parameters: Mapping[str, Any]) -> TrialError:
    """The error for a non-finite ``what``, which ends the trial; it names the parameters."""
    named = ", ".join(f"{name}={value}" for name, value in parameters.items()) or "the defaults"
    got, remedy = f"nan or infinity with {named}", "lower the learning_rate or set max_grad_norm"
    return TrialError(Fault(what, "be a finite number", got, remedy))
