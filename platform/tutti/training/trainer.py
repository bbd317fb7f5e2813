"""transformers.Trainer with batches of one task each and a loss normalised over the global batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from tutti.data.batches import TaskBatchSampler, TaskRows
from tutti.data.encode import EncodedPart
from tutti.errors import Fault, TrialError
from tutti.modeling.model import MultiTaskModel
from tutti.training.ema import WeightAverage
from tutti.training.ranks import summed


class MultiTaskTrainer(Trainer):
    """Trains one encoder and its heads; after each epoch it calls ``after_epoch`` in the place of saving.

    The loss of an optimizer step is the cross-entropy of all its rows, over all ranks and all accumulated batches,
    weighted and divided by their total weight. So 2 workers, or 2 accumulation steps, with batch b give the loss,
    gradients and weights of one worker with batch 2b.

    Args:
        parts: task to its training rows, which have labels.
        average: updated after each optimizer step.
        parameters: what a TrialError names when the loss is no longer finite.
        after_epoch: called on every rank, after the epoch's last step was logged.
    """

    loss_is_scaled_for_ga = True  # compute_loss divides by the weight of all accumulated batches itself

    def __init__(
        self,
        *,
        model: MultiTaskModel,
        args: TrainingArguments,
        parts: Mapping[str, EncodedPart],
        ema_decay: float | None,
        parameters: Mapping[str, Any],
        after_epoch: Callable[[MultiTaskTrainer], None],
    ) -> None:
        self._parts = dict(parts)
        rows = TaskRows(parts, multiple=8 if args.device.type == "cuda" else 1)
        args._n_gpu = min(args.n_gpu, 1)  # one GPU per worker: never DataParallel
        super().__init__(model=model, args=args, train_dataset=rows, callbacks=[_Hooks(self)])
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.average = None if ema_decay is None else WeightAverage(model, decay=ema_decay)
        self.logged: list[tuple[int, dict[str, float]]] = []
        self._parameters = dict(parameters)
        self._after_epoch = after_epoch
        self._finite = torch.ones((), dtype=torch.bool, device=args.device)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=args.device)
        self._loss_steps = 0

    def get_train_dataloader(self) -> DataLoader:
        """Not prepared by accelerate, which would share the batches out a second time."""
        args = self.args
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler = TaskBatchSampler(
            {task: part.weights for task, part in self._parts.items()},
            per_device_batch=args.per_device_train_batch_size,
            seed=seed,
            rank=args.process_index,
            world=args.world_size,
        )
        return _TaskLoader(
            self.train_dataset,
            batch_sampler=sampler,  # type: ignore[arg-type]  # yields TaskBatch, which the rows' __getitems__ takes
            collate_fn=_as_it_is,
            num_workers=args.dataloader_num_workers,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
        )

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
        logits = model(**inputs)
        losses = cross_entropy(
            logits.float(), labels, reduction="none", label_smoothing=self.args.label_smoothing_factor
        )
        loss = (losses * weights).sum() * (self.args.world_size / (num_items_in_batch or weight_sum))
        self._finite &= loss.detach().isfinite()
        self._loss_sum += loss.detach()
        return (loss, logits) if return_outputs else loss

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, Any]], device: torch.device) -> float | None:
        return sum(batch["weight_sum"] for batch in batch_samples) or None

    def check_loss(self) -> None:
        """Raises on every rank before a step is taken with a loss that is not finite on any.

        Raises:
            TrialError: naming step and parameters.
        """
        self._loss_steps += 1
        if summed((~self._finite).to(torch.int32)).item():
            parameters = ", ".join(f"{name}={value}" for name, value in self._parameters.items()) or "the defaults"
            raise TrialError(
                Fault(
                    f"the training loss at step {self.state.global_step + 1}",
                    "be a finite number",
                    f"nan or infinity with {parameters}",
                    "lower the learning_rate or set max_grad_norm",
                )
            )

    def take_train_loss(self) -> float:
        """The mean loss of the steps since the last call, over all ranks."""
        mean = summed(self._loss_sum).item() / (max(self._loss_steps, 1) * self.args.world_size)
        self._loss_sum.zero_()
        self._loss_steps = 0
        return mean

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        self._after_epoch(self)


class _Hooks(TrainerCallback):
    """Ties the trainer's own work to the loop's events."""

    def __init__(self, trainer: MultiTaskTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._trainer.check_loss()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        if self._trainer.average is not None:
            self._trainer.average.update()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any
    ) -> None:
        if "loss" in logs:
            values: dict[str, float] = {
                name: float(logs[name]) for name in ("loss", "grad_norm", "learning_rate") if name in logs
            }
            self._trainer.logged.append((state.global_step, values))

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_log = control.should_save = True


class _TaskLoader(DataLoader):
    def set_epoch(self, epoch: int) -> None:
        """What Trainer calls at the start of each epoch, counted from 0."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


def _as_it_is(batch: Any) -> Any:
    return batch
