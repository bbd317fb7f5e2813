"""Linear layers with weights of 8 bits, on CPUs."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn


def quantised(encoder: Any) -> Any:
    """The encoder with dynamically quantised linear layers: int8 weights by channel, activations by batch.

    The encoder given stays as it is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what will be torchao's
        scheme = torch.ao.quantization.per_channel_dynamic_qconfig
        return torch.ao.quantization.quantize_dynamic(encoder, {nn.Linear: scheme}, dtype=torch.qint8)
