"""Forward passes that a GPU need not be waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask


@contextmanager
def without_asking_for_padding(mask: Tensor | None, device: torch.device) -> Iterator[None]:
    """Keeps transformers from asking a GPU, in each forward pass of the block, whether the batch has padding.

    The answer only matters for a batch without any, whose attention needs no mask. To get it, the process waits until
    the GPU has computed everything before, and the GPU then waits for the next commands: up to 40% of a step's time. No
    effect on a CPU, and on a batch without padding, for which faster kernels are worth the wait. Not thread-safe.

    Args:
        mask: ``(rows, tokens)`` attention mask, on the CPU where it was made; on a GPU it is taken to have padding.
            Without one there is no padding.
        device: what the model is on.
    """
    if device.type == "cpu" or mask is None or (mask.device.type == "cpu" and bool(mask.all())):
        yield
        return
    ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] = _masked  # an override of the shared instance's own function
    try:
        yield
    finally:
        del ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]


def _masked(*args: Any, **options: Any) -> Tensor | None:
    # Encoders and decoders ask in different ways.
    return sdpa_mask(*args, **{**options, "allow_is_bidirectional_skip": False, "allow_is_causal_skip": False})
