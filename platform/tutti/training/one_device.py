"""transformers.Trainer on one device for each process, silent, and on from a state of another precision."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor
from transformers import PrinterCallback, Trainer, TrainingArguments

from tutti.training.cpu import quick_masks, slow_attention, step_by_step


class OneDeviceTrainer(Trainer):
    """What both of Tutti's trainers have in common.

    Several GPUs of a machine are for several workers: never DataParallel, which splits a batch behind the trainer.

    Args:
        attention: the attention that the user has named; by default the fastest on a CPU in bfloat16 too.
    """

    def __init__(self, *, args: TrainingArguments | None = None, attention: str | None = None, **options: Any) -> None:
        if args is not None:
            args._n_gpu = min(args.n_gpu, 1)
        super().__init__(args=args, **options)
        self.remove_callback(PrinterCallback)
        on_cpu = self.args.device.type == "cpu" and not self.args.torch_compile
        quick = on_cpu and self.args.bf16 and attention is None
        self._slow_attention = slow_attention(self.model) if quick else []
        self._masks = quick_masks if on_cpu else nullcontext

    def train(self, *given: Any, **named: Any) -> Any:
        with self._masks():
            return super().train(*given, **named)

    def training_step(self, *given: Any, **named: Any) -> Tensor:
        with step_by_step(self._slow_attention):
            return super().training_step(*given, **named)

    def _prepare_input(self, data: Any) -> Any:
        """Trainer's own, but a GPU copies pinned batches while it computes the one before."""
        if isinstance(data, Tensor):
            return data.to(self.args.device, non_blocking=self.args.device.type == "cuda")
        return super()._prepare_input(data)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Only fp16 scales its loss: a run that goes on in another precision leaves the state's scaler where it is."""
        if self.accelerator.scaler is not None:
            super()._load_scaler(checkpoint)
