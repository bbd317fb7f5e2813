"""The precision that a trial trains and predicts in: by default the fastest that its processor supports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import TrainingArguments

PRECISIONS = ("bf16", "fp16", "tf32")
MIN_SPEEDUP = 1.2
"""Least speedup of a matrix product in bfloat16 over float32 to choose bf16; other operations gain nothing from it."""

_FLOAT32_ONLY = frozenset({"deberta"})
"""Model types that fail in bf16 and fp16. DeBERTa's first version, unlike its later ones, fills masked attention
scores, which autocast has computed in half precision, with the least float32, which overflows in it."""


def runs_in_half_precision(model_type: str) -> bool:
    """Whether an encoder of this type, as in its config.json, can be computed in bf16 and fp16."""
    return model_type not in _FLOAT32_ONLY


def with_precision(
    arguments: Mapping[str, Any], *, cpu: bool, model_type: str, began_in: str | None = None
) -> dict[str, Any]:
    """TrainingArguments' fields with bf16, fp16 and tf32 chosen if that ``is_automatic``.

    The choice is bf16 on a GPU from Ampere on and on a CPU where bf16 is faster, otherwise fp16 on a GPU, otherwise
    float32. TF32 is used for the remaining float32 operations on a GPU that has it. ``bf16: false`` selects float32,
    ``fp16: false`` leaves bf16 and float32 to choose from. Sharded weights are never trained in fp16.

    Args:
        model_type: of the encoder; one that fails in half precision gets float32.
        began_in: the precision of a resumed run, which is kept on a processor of the same kind that supports it, even
            if another precision is faster there.
    """
    chosen: dict[str, Any] = {}
    if is_automatic(arguments):
        if not runs_in_half_precision(model_type):
            chosen["bf16"] = False
        elif cpu:
            chosen["bf16"] = began_in == "bf16" if began_in in ("bf16", "float32") else cpu_gains_from_bf16()
        elif began_in != "fp16" and torch.cuda.is_bf16_supported(including_emulation=False):
            chosen["bf16"] = True
        elif not arguments.get("fsdp") and "fp16" not in arguments:
            chosen["fp16"] = True
    if not cpu and "tf32" not in arguments and torch.cuda.get_device_capability() >= (8, 0):
        chosen["tf32"] = True
    return {**chosen, **arguments}


def is_automatic(arguments: Mapping[str, Any]) -> bool:
    """Whether the precision is chosen by the processor: neither ``bf16`` nor ``fp16: true`` is set."""
    return "bf16" not in arguments and not arguments.get("fp16")


@cache
def cpu_gains_from_bf16() -> bool:
    """Whether matrix products on this CPU are faster in bfloat16 than in float32. Measured in a tenth of a second.

    The processor's flags do not decide this. With AMX, or on AMD processors with AVX-512 BF16, bfloat16 is two to
    eight times as fast. On Intel processors with AVX-512 BF16 whose AMX is hidden by a virtual machine, it is slower.
    """
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return False
    fastest = dict.fromkeys((torch.float32, torch.bfloat16), float("inf"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        factors = {dtype: (torch.ones(64, 384, dtype=dtype), torch.ones(384, 384, dtype=dtype)) for dtype in fastest}
        # Short alternating runs, of which the fastest counts, exclude the influence of other processes.
        for _ in range(100):
            for dtype, (rows, weight) in factors.items():
                started = time.perf_counter()
                torch.nn.functional.linear(rows, weight)
                fastest[dtype] = min(fastest[dtype], time.perf_counter() - started)
    torch.set_num_threads(threads)
    return fastest[torch.float32] >= MIN_SPEEDUP * fastest[torch.bfloat16]


def name_of(args: TrainingArguments) -> str:
    """``bf16``, ``fp16``, ``tf32`` or ``float32``."""
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "tf32" if args.tf32 else "float32"


def ruled_out(training: Mapping[str, Any]) -> dict[str, Any]:
    """The training keys by which a study rules out a precision."""
    return {name: False for name in ("bf16", "fp16") if training.get(name) is False}


def fastest(device: torch.device, *, model_type: str, training: Mapping[str, Any]) -> str:
    """The precision in which the device predicts fastest with an encoder: ``bf16``, ``fp16`` or ``float32``.

    Args:
        training: the study's training keys; a precision that they set to False is ruled out, as in training.
    """
    chosen = with_precision(ruled_out(training), cpu=device.type == "cpu", model_type=model_type)
    return next((name for name in ("bf16", "fp16") if chosen.get(name)), "float32")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context that gives a forward pass outside the Trainer a precision, named as by ``name_of``."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()
