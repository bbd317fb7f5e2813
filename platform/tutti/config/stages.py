"""Training stages: they run one after the other, each starting from the best weights so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STAGES = "stages"
WEIGHTS = ("task_weights", "sampling_weights")  # task to weight: a search space varies one as ``task_weights.NAME``

# Keys that define the model or are read once per trial, and so cannot differ between stages.
OF_THE_TRIAL = frozenset(
    {STAGES, "pooling", "pooling_layers", "pooling_dropout", "head_dropout", "head_dropout_samples", "max_length"}
    | {"reinit_layers"}
    | {"truncation", "stride", "swap", "head", "words"}
    | {"evals_per_epoch", "best_by"}
    | {"bf16", "fp16", "tf32", "fsdp", "fsdp_config"}
    | {"lora_targets", "lora_layers", "use_rslora", "use_dora", "weights"}
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
    """``training`` updated with a trial's parameters.

    ``stages.1.learning_rate`` goes into the second stage, ``task_weights.CoLA`` into ``task_weights``; ``backbone`` is
    no training key.
    """
    merged = dict(training)
    parameters = {key: value for key, value in parameters.items() if key != "backbone"}
    stages = [dict(stage) for stage in training.get(STAGES) or ()]
    for key, value in parameters.items():
        first, _, rest = key.partition(".")
        if first == STAGES:
            index, _, name = rest.partition(".")
            stages[int(index)][name] = value
        elif first in WEIGHTS:
            merged[first] = {**(merged.get(first) or {}), rest: value}
        else:
            merged[key] = value
    return {**merged, STAGES: stages} if stages else merged


def without_task(key: str) -> str:
    """``task_weights`` of ``task_weights.CoLA``; any other key as it is."""
    first, _, task = key.partition(".")
    return first if task and first in WEIGHTS else key
