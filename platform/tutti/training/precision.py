"""The precision that a trial trains and predicts in: the fastest that its processor has, unless the user says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from transformers import TrainingArguments

PRECISIONS = ("bf16", "fp16", "tf32")


def with_precision(arguments: Mapping[str, Any], *, cpu: bool) -> dict[str, Any]:
    """TrainingArguments' fields with bf16, fp16 and tf32 chosen where the user names neither bf16 nor fp16.

    bf16 wherever the processor computes in it (a GPU from Ampere on; a CPU with AVX-512 BF16 or AMX), otherwise fp16 on
    a GPU, otherwise float32. TF32 for what stays in float32 on a GPU that has it. ``bf16: false`` asks for float32.
    """
    chosen: dict[str, Any] = {}
    if not {"bf16", "fp16"} & arguments.keys():
        if cpu:
            chosen["bf16"] = cpu_has_bf16()
        elif torch.cuda.is_bf16_supported(including_emulation=False):
            chosen["bf16"] = True
        else:
            chosen["fp16"] = True
    if not cpu and "tf32" not in arguments and torch.cuda.get_device_capability() >= (8, 0):
        chosen["tf32"] = True
    return {**chosen, **arguments}


def cpu_has_bf16() -> bool:
    """Whether this CPU computes in bfloat16, and not only stores it."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def name_of(args: TrainingArguments) -> str:
    """``bf16``, ``fp16``, ``tf32`` or ``float32``."""
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "tf32" if args.tf32 else "float32"


def autocast(args: TrainingArguments) -> AbstractContextManager[object]:
    """The context that a forward pass outside of the Trainer needs for the precision of training."""
    if not (args.bf16 or args.fp16):
        return nullcontext()
    return torch.autocast(args.device.type, dtype=torch.bfloat16 if args.bf16 else torch.float16)
