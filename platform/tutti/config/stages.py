"""Stages: one training after the other, each from the best weights so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STAGES = "stages"

# What makes the model, or is read once: it cannot differ from stage to stage.
OF_THE_TRIAL = frozenset(
    {STAGES, "pooling", "pooling_layers", "head_dropout", "head_dropout_samples", "max_length", "reinit_layers"}
    | {"evals_per_epoch"}
    | {"bf16", "fp16", "tf32", "fsdp", "fsdp_config"}
    | {"adapter", "lora_r", "lora_alpha", "lora_dropout", "bits", "double_quant", "quant_type", "attn_implementation"}
)


def staged(training: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The training keys of each stage: what stands under ``stages`` laid over all others. One stage where none does."""
    common = {key: value for key, value in training.items() if key != STAGES}
    stages: Sequence[Mapping[str, Any]] = training.get(STAGES) or ({},)
    return tuple({**common, **own} for own in stages)


def overlay(training: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """``training`` with a trial's parameters laid over it; ``stages.1.learning_rate`` goes into the second stage."""
    laid = {**training, **{key: value for key, value in parameters.items() if not key.startswith(f"{STAGES}.")}}
    stages = [dict(stage) for stage in training.get(STAGES) or ()]
    for key, value in parameters.items():
        if key.startswith(f"{STAGES}."):
            _, index, name = key.split(".", 2)
            stages[int(index)][name] = value
    return {**laid, STAGES: stages} if stages else laid
