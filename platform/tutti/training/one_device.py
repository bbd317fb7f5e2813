"""transformers.Trainer on one device for each process, silent, and on from a state of another precision."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PrinterCallback, Trainer, TrainingArguments


class OneDeviceTrainer(Trainer):
    """What both of Tutti's trainers have in common.

    Several GPUs of a machine are for several workers: never DataParallel, which splits a batch behind the trainer.
    """

    def __init__(self, *, args: TrainingArguments | None = None, **options: Any) -> None:
        if args is not None:
            args._n_gpu = min(args.n_gpu, 1)
        super().__init__(args=args, **options)
        self.remove_callback(PrinterCallback)

    def _prepare_input(self, data: Any) -> Any:
        """Trainer's own, but a GPU copies pinned batches while it computes the one before."""
        if isinstance(data, Tensor):
            return data.to(self.args.device, non_blocking=self.args.device.type == "cuda")
        return super()._prepare_input(data)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Only fp16 scales its loss: a run that goes on in another precision leaves the state's scaler where it is."""
        if self.accelerator.scaler is not None:
            super()._load_scaler(checkpoint)
