"""A silent transformers.Trainer that uses one device per process and resumes from states of any precision."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments

from tutti.training.machine.cpu import eager_attention, quick_masks, slow_attention
from tutti.training.machine.gpu import without_asking_for_padding


class OneDeviceTrainer(Trainer):
    """Common base of Tutti's fine-tuning and pretraining trainers.

    Each GPU of a machine belongs to one worker, so DataParallel, which would split batches over them, is disabled.

    Args:
        attention: the attention implementation chosen by the user; None chooses the fastest one on a CPU in bfloat16.
    """

    def __init__(self, *, args: TrainingArguments, attention: str | None = None, **options: Any) -> None:
        args._n_gpu = min(args.n_gpu, 1)
        super().__init__(args=args, **options)
        self.remove_callback(PrinterCallback)
        on_cpu = self.args.device.type == "cpu" and not self.args.torch_compile
        choose_attention = on_cpu and self.args.bf16 and attention is None
        self._slow_attention = slow_attention(self.model) if choose_attention else []
        self._masks = quick_masks if on_cpu else nullcontext

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with self._masks():
            return super().train(*args, **kwargs)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        mask = None if "row_mask" in inputs else inputs.get("attention_mask")  # packed rows are no padding
        asks_nothing = without_asking_for_padding(mask, self.args.device)
        with eager_attention(self._slow_attention), asks_nothing:
            return super().training_step(model, inputs, *args, **kwargs)

    def _prepare_input(self, data: Any) -> Any:
        """Copies pinned batches to a GPU asynchronously, while it computes the previous batch."""
        if isinstance(data, Tensor):
            return data.to(self.args.device, non_blocking=self.args.device.type == "cuda")
        return super()._prepare_input(data)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Ignores the state's loss scaler when the resumed run does not use fp16, which alone scales the loss."""
        if self.accelerator.scaler is not None:
            super()._load_scaler(checkpoint)
