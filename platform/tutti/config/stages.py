"""Stages: one training after the other, each from the best weights so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tutti.errors import Fault, nearest

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


def weight_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each weight, of all stages or of one, of a task that the study does not have."""
    tasks, training = raw.get("tasks"), raw.get("training")
    if not isinstance(tasks, dict) or not isinstance(training, dict):
        return []
    stages = training.get(STAGES)
    stages = list(enumerate(stages)) if isinstance(stages, list | tuple) else []
    places = [("training", training), *((f"training.{STAGES}.{index}", stage) for index, stage in stages)]
    return [
        Fault(
            what(f"{place}.{key}.{name}"),
            "name a task of the study",
            repr(name),
            nearest(name, list(tasks), otherwise=f"name one of {', '.join(tasks)}"),
        )
        for place, keys in places
        for key in ("task_weights", "sampling_weights")
        if isinstance(keys, dict) and isinstance(keys.get(key), dict)
        for name in keys[key]
        if name not in tasks
    ]
