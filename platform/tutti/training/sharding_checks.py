"""Which training keys go with ``fsdp: true``, where every worker keeps a shard of each weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tutti.config.training import TrainingOptions
from tutti.config.yaml_file import show
from tutti.errors import Fault, nearest

CONFIG = ("reshard_after_forward", "transformer_layer_cls_to_wrap", "version")  # of fsdp_config
# Those that step on shards and go on from them; Adagrad, say, makes its state before there are any.
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "rmsprop")

_REFUSED = {  # other keys of fsdp_config that transformers has, and what to do
    "activation_checkpointing": "set training.activation_checkpointing, which keeps dropout as it was",
    "state_dict_type": "take it out: states and checkpoints are always whole",
    "cpu_ram_efficient_loading": "take it out: every worker reads the whole backbone once",
}


def config_faults(what: str, config: Any) -> list[Fault]:
    """Of the value of fsdp_config: a mapping with the keys that are supported here."""
    if config is None:
        return []
    if not isinstance(config, dict):
        return [Fault(what, "be a mapping", show(config), "write its keys below it")]
    told = []
    for key, value in config.items():
        if key not in CONFIG:
            remedy = _REFUSED.get(key) or nearest(key, CONFIG, otherwise="take it out")
            told.append(Fault(f"{what}.{key}", f"be one of {', '.join(CONFIG)}", repr(key), remedy))
        elif key == "version" and value != 2:
            told.append(Fault(f"{what}.{key}", "be 2", show(value), "take it out: 2 is the default"))
        elif key == "reshard_after_forward" and not isinstance(value, bool):
            told.append(Fault(f"{what}.{key}", "be true or false", show(value), "write true or false"))
        elif key == "transformer_layer_cls_to_wrap" and not _names(value):
            told.append(Fault(f"{what}.{key}", "be a list of classes", show(value), "write it like [BertLayer]"))
    return told


def unsharded_rules(options: TrainingOptions, arguments: Mapping[str, Any]) -> list[str]:
    """What keys must be with ``fsdp: true`` and are not, each as it follows "must"; none without it."""
    if not arguments.get("fsdp"):
        return []
    wrong = {
        "have no bits with fsdp: quantised weights cannot be sharded": options.bits,
        "have no `loss_balancing: uncertainty` with fsdp, whose optimizer holds the model's weights alone": (
            options.loss_balancing == "uncertainty"
        ),
        "have no torch_compile with fsdp": arguments.get("torch_compile"),
        "have bf16 or float32 with fsdp, not fp16, whose loss scaler sees a worker's shards alone": (
            arguments.get("fp16")
        ),
        f"have one of the optimizers {', '.join(OPTIMIZERS)} with fsdp": (
            arguments.get("optim", OPTIMIZERS[0]) not in OPTIMIZERS
        ),
    }
    return [rule for rule, found in wrong.items() if found]


def _names(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(name, str) for name in value)
