"""How much of a device's measured matrix peak the training of an encoder uses."""

from __future__ import annotations

from statistics import median

import shared
import torch
from transformers import AutoConfig

SIZES = {"cpu": 2048, "cuda": 8192}  # of the square matrices that are multiplied


def measured_peak(*, bf16: bool) -> float:
    """Floating point operations per second of products of large square matrices, the best that this device shows."""
    size = SIZES[shared.device.type]
    dtype = torch.bfloat16 if bf16 else torch.float32
    left, right = (torch.randn(size, size, device=shared.device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(12):
        start = shared.now()
        left @ right
        seconds.append(shared.now() - start)
    return 2 * size**3 / median(seconds[2:])


def operations_per_token(backbone: str, *, length: float) -> float:
    """Floating point operations of a training step per token: 6 for each weight of the layers' matrices, and 12 for
    each entry of attention's (Chowdhery et al. 2022, arXiv 2204.02311, appendix B).

    Args:
        length: the mean number of tokens that a token attends to.
    """
    config = AutoConfig.from_pretrained(backbone)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    matrices = layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    return 6 * matrices + 12 * layers * hidden * length
