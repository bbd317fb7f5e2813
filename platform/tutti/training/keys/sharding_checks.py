"""Checks of training keys combined with ``fsdp: true``, where every worker holds a shard of each weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tutti.config.training import TrainingOptions
from tutti.config.yaml_file import show
from tutti.errors import Fault, nearest

CONFIG = ("reshard_after_forward", "transformer_layer_cls_to_wrap", "version")  # supported keys of fsdp_config
# Optimizers that can step on and resume from shards. Adagrad, for example, creates its state before sharding.
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "rmsprop")

_REFUSED = {  # other keys of transformers' fsdp_config, to the remedy
    "activation_checkpointing": "set training.activation_checkpointing, which keeps dropout as it was",
    "state_dict_type": "take it out: states and checkpoints are always whole",
    "cpu_ram_efficient_loading": "take it out: every worker reads the whole backbone once",
}


def config_faults(what: str, config: Any) -> list[Fault]:
    """Faults of the value of fsdp_config, which must be a mapping with supported keys."""
    if config is None:
        return []
    if not isinstance(config, dict):
        return [Fault(what, "be a mapping", show(config), "write its keys below it")]
    faults = []
    for key, value in config.items():
        if key not in CONFIG:
            remedy = _REFUSED.get(key) or nearest(key, CONFIG, otherwise="take it out")
            faults.append(Fault(f"{what}.{key}", f"be one of {', '.join(CONFIG)}", repr(key), remedy))
        elif key == "version" and value != 2:
            faults.append(Fault(f"{what}.{key}", "be 2", show(value), "take it out: 2 is the default"))
        elif key == "reshard_after_forward" and not isinstance(value, bool):
            faults.append(Fault(f"{what}.{key}", "be true or false", show(value), "write true or false"))
        elif key == "transformer_layer_cls_to_wrap" and not (
            isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value)
        ):
            faults.append(Fault(f"{what}.{key}", "be a list of classes", show(value), "write it like [BertLayer]"))
    return faults


def violated_sharding_rules(options: TrainingOptions, arguments: Mapping[str, Any]) -> list[str]:
    """Rules of ``fsdp: true`` that the keys violate, each written to follow "must"; none without fsdp."""
    if not arguments.get("fsdp"):
        return []
    violations = {
        "have no bits with fsdp: quantised weights cannot be sharded": options.bits,
        "have no `loss_balancing: uncertainty` with fsdp, whose optimizer holds the model's weights alone": (
            options.loss_balancing == "uncertainty"
        ),
        "have no torch_compile with fsdp": any(
            arguments.get(key) for key in ("torch_compile", "torch_compile_backend", "torch_compile_mode")
        ),
        "have bf16 or float32 with fsdp, not fp16, whose loss scaler sees a worker's shards alone": (
            arguments.get("fp16")
        ),
        f"have one of the optimizers {', '.join(OPTIMIZERS)} with fsdp": (
            arguments.get("optim", OPTIMIZERS[0]) not in OPTIMIZERS
        ),
    }
    return [rule for rule, violated in violations.items() if violated]
