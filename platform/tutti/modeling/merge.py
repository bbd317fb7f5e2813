"""Models without adapters: of a checkpoint, one task alone, with its adapter merged into the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

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
        _merge(encoder)
    model = MultiTaskModel(
        encoder=encoder.float(), tasks=[task], heads=metadata.heads, global_attention=metadata.global_attention
    )
    model.heads[head_key(task.name)].load_state_dict(loaded.head(task.name).state_dict())
    return model.eval(), metadata


@torch.no_grad()
def _merge(encoder: Any) -> None:
    """Makes plain layers of adapted ones, and of quantised ones what their weights stand for."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in [*encoder.named_modules()]:
        parent, _, own = name.rpartition(".")
        layer: Any = module
        if isinstance(module, BaseTunerLayer):
            base = layer.get_base_layer()
            if _is_quantised(base):
                base = _plain(base, layer)
            else:
                layer.merge()
            setattr(encoder.get_submodule(parent), own, base)
        elif _is_quantised(module) and own != "base_layer":
            setattr(encoder.get_submodule(parent), own, _plain(module))
    encoder._hf_peft_config_loaded = False
    encoder.is_quantized = False
    for each in ("peft_config", "hf_quantizer"):
        vars(encoder).pop(each, None)
    vars(encoder.config).pop("quantization_config", None)


def _is_quantised(module: nn.Module) -> bool:
    return type(module).__module__.startswith("bitsandbytes.")


def _plain(quantised: Any, layer: Any = None) -> nn.Linear:
    """A layer of float32 with the weights of a quantised one, and with those of the adapter on it if there is one."""
    from peft.utils.integrations import dequantize_module_weight

    weight = dequantize_module_weight(quantised).float()
    if layer is not None:
        (name,) = layer.active_adapters
        delta = layer.get_delta_weight(name).float()
        length = layer.lora_magnitude_vector[name] if layer.use_dora[name] else None
        if length is not None:
            norm = length.get_weight_norm(weight, delta, scaling=1)
            delta = (length.weight / norm).view(-1, 1) * (weight + delta) - weight
        weight = weight + delta
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=quantised.bias is not None)
    plain.weight.copy_(weight)
    if quantised.bias is not None:
        plain.bias.copy_(quantised.bias)
    return plain
