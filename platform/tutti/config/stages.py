"""Training stages: they run one after the other, each starting from the best weights so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STAGES = "stages"

# Keys that define the model or are read once per trial, and so cannot differ between stages.
OF_THE_TRIAL = frozenset(
    {STAGES, "pooling", "pooling_layers", "head_dropout", "head_dropout_samples", "max_length", "reinit_layers"}
    | {"evals_per_epoch"}
    | {"bf16", "fp16", "tf32", "fsdp", "fsdp_config"}
    | {"adapter", "lora_r", "lora_alpha", "lora_dropout", "bits", "double_quant", "quant_type", "attn_implementation"}
)


def staged(training: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The training keys of each stage: the common keys, overridden by the stage's own. One stage if none is given.

    A stage that trains heads alone, at a ``learning_rate`` of its own, has no common ``head_learning_rate``.
    """
    common = {key: value for key, value in training.items() if key != STAGES}
    stages: Sequence[Mapping[str, Any]] = training.get(STAGES) or ({},)
    return tuple(_stage(common, own) for own in stages)


def _stage(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    keys = {**common, **own}
    if keys.get("freeze_encoder") and "learning_rate" in own and "head_learning_rate" not in own:
        keys.pop("head_learning_rate", None)
    return keys


def overlay(training: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """``training`` updated with a trial's parameters; ``stages.1.learning_rate`` goes into the second stage."""
    merged = {**training, **{key: value for key, value in parameters.items() if not key.startswith(f"{STAGES}.")}}
    stages = [dict(stage) for stage in training.get(STAGES) or ()]
    for key, value in parameters.items():
        if key.startswith(f"{STAGES}."):
            _, index, name = key.split(".", 2)
            stages[int(index)][name] = value
    return {**merged, STAGES: stages} if stages else merged
