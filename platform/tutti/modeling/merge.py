"""Models without adapters: of a checkpoint, one task alone, with its adapter merged into the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tutti.modeling.checkpoint import CheckpointMetadata, load_checkpoint
from tutti.modeling.model import MultiTaskModel, head_key
from tutti.tasks.task import Task


def merged_model(folder: Path, task: Task) -> tuple[MultiTaskModel, CheckpointMetadata]:
    """The model of a checkpoint in float32, on the CPU and in evaluation mode, with the head of one of its tasks.

    Args:
        task: of this name in the checkpoint; the model's is this one.

    Raises:
        StorageError, BackboneError: as ``load_checkpoint`` does.
    """
    loaded, metadata = load_checkpoint(folder)
    encoder: Any = loaded.encoder
    if metadata.adapter is not None:
        _merge(encoder, quantised=metadata.adapter.bits is not None)
    model = MultiTaskModel(
        encoder=encoder.float(), tasks=[task], heads=metadata.heads, global_attention=metadata.global_attention
    )
    model.heads[head_key(task.name)].load_state_dict(loaded.head(task.name).state_dict())
    return model.eval(), metadata


@torch.no_grad()
def _merge(encoder: Any, *, quantised: bool) -> None:
    from peft.tuners.tuners_utils import BaseTunerLayer

    if quantised:
        encoder.dequantize()
    encoder.float()
    for name, module in [*encoder.named_modules()]:
        if isinstance(module, BaseTunerLayer):
            layer: Any = module
            layer.merge()
            setattr(encoder.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], layer.get_base_layer())
    encoder._hf_peft_config_loaded = False
    del encoder.peft_config
