"""Linear layers with weights of 8 bits, on CPUs, and the file that holds these weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from tutti.modeling.pooler import takes_pooling_layer

FILE = "int8.safetensors"
"""All weights of an encoder, in place of model.safetensors: of linear layers ``NAME.weight`` is int8, ``(outputs,
inputs)``, and ``NAME.scales`` float32, ``(outputs,)``: their product is the weight."""


def quantised(encoder: Any) -> Any:
    """The encoder with dynamically quantised linear layers: int8 weights by channel, activations by batch.

    The encoder given stays as it is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what will be torchao's
        scheme = torch.ao.quantization.per_channel_dynamic_qconfig
        return torch.ao.quantization.quantize_dynamic(encoder, {nn.Linear: scheme}, dtype=torch.qint8)


def save_int8(encoder: Any, folder: Path) -> None:
    """Writes ``FILE`` into a checkpoint's folder, in place of the encoder's weights in float32."""
    from torch.ao.nn.quantized import dynamic

    state = {name: tensor.clone().contiguous() for name, tensor in encoder.state_dict().items()}
    for name, module in quantised(encoder).named_modules():
        if isinstance(module, dynamic.Linear):
            weight = module.weight()
            state[f"{name}.weight"], state[f"{name}.scales"] = weight.int_repr(), weight.q_per_channel_scales().float()
    save_file(state, folder / FILE)
    for file in folder.glob("model*.safetensors*"):
        file.unlink()


def load_int8(folder: Path, *, pooler: bool, attn_implementation: str | None = None) -> Any:
    """The encoder of a folder with ``FILE``, in float32: what its weights of 8 bits stand for.

    Args:
        pooler, attn_implementation: as of ``load_encoder``.
    """
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    options: dict[str, Any] = {"add_pooling_layer": pooler} if takes_pooling_layer(config) else {}
    options |= {"attn_implementation": attn_implementation, "dtype": torch.float32}
    encoder = AutoModel.from_config(config, trust_remote_code=False, **options)
    state = load_file(folder / FILE)
    for name, (weight, scales) in _weights(state).items():
        state[f"{name}.weight"] = weight * scales.unsqueeze(1)
        del state[f"{name}.scales"]
    encoder.load_state_dict(state)
    return encoder


def with_stored(encoder: Any, folder: Path) -> Any:
    """The encoder of ``load_int8`` with the quantised linear layers that the folder holds."""
    from torch.ao.nn.quantized import dynamic

    for name, (weight, scales) in _weights(load_file(folder / FILE)).items():
        plain = encoder.get_submodule(name)
        layer = dynamic.Linear(plain.in_features, plain.out_features, plain.bias is not None)
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        exact = torch._make_per_channel_quantized_tensor(weight, scales.double(), zeros, 0)
        layer.set_weight_bias(exact, plain.bias)
        encoder.set_submodule(name, layer)
    return encoder


def _weights(state: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """By linear layer its weights of 8 bits and their scales."""
    names = [name.removesuffix(".scales") for name in state if name.endswith(".scales")]
    return {name: (state[f"{name}.weight"], state[f"{name}.scales"]) for name in names}
