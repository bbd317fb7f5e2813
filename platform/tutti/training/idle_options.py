"""Checks for options that would have no effect in a trial, although each key is valid by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tutti.errors import Fault


def idle_option_faults(where: str, stages: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """Faults of options without effect: a start after the last epoch, options of a frozen encoder, averages of one or
    of equal values.

    Args:
        where: a stage's place in messages, with ``{}`` for its index.
        stages: the valid training keys of each stage, merged with the common keys and the defaults.
    """
    late = [fault for index, keys in enumerate(stages) for fault in _late_faults(where.format(index), keys)]
    return late or _frozen_faults(where.format(0), stages) + _no_effect_faults(where.format(0), stages)


def _late_faults(where: str, keys: Mapping[str, Any]) -> list[Fault]:
    """Faults of averages and attacks that would start after a stage's last epoch."""
    if keys.get("max_steps", -1) > 0:  # the number of epochs then depends on the data
        return []
    epochs, faults = keys["num_train_epochs"], []
    if keys.get("swa_epochs", 0) > math.ceil(epochs):
        rule, remedy = f"be at most num_train_epochs, {epochs:g}", "lower it, or train for more epochs"
        faults.append(Fault(f"{where}.swa_epochs", rule, str(keys["swa_epochs"]), remedy))
    if keys.get("swa_epochs") == 1:
        rule, remedy = "be 0 or at least 2: the mean over one epoch is the epoch itself", "raise it, or take it out"
        faults.append(Fault(f"{where}.swa_epochs", rule, "1", remedy))
    if keys.get("adversarial") and keys.get("adversarial_start", 0) >= epochs:
        rule, remedy = f"be below num_train_epochs, {epochs:g}", "lower it, or train for more epochs"
        faults.append(Fault(f"{where}.adversarial_start", rule, str(keys["adversarial_start"]), remedy))
    return faults


def _frozen_faults(where: str, stages: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """Faults of encoder options if every stage freezes the encoder. Freezing it in some stages only is fine."""
    if not all(keys.get("freeze_encoder") for keys in stages):
        return []
    encoder_options = {
        "adapter": stages[0].get("adapter"),
        "reinit_layers": stages[0].get("reinit_layers"),
        "mixout": any(keys.get("mixout") for keys in stages),
        "layer_lr_decay": any(keys.get("layer_lr_decay", 1) < 1 for keys in stages),
    }
    rule = "be false in one stage at least with {}, which is about the encoder's weights: only heads would train"
    remedy = "take one of the two out, or freeze the encoder in some of several stages"
    return [
        Fault(f"{where}.freeze_encoder", rule.format(name), f"true with {name}", remedy)
        for name, active in encoder_options.items()
        if active
    ]


def _no_effect_faults(where: str, stages: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """Faults of options that change nothing in any stage."""
    faults = []
    masks = stages[0].get("head_dropout_samples", 1)
    if masks > 1 and stages[0].get("head_dropout") == 0:
        rule, remedy = "be above 0 with head_dropout_samples: without it all masks are one", "change one of the two"
        faults.append(Fault(f"{where}.head_dropout", rule, f"0 with {masks} samples", remedy))
    dynamic = [keys for keys in stages if keys.get("loss_balancing") == "dynamic"]
    if dynamic and all(keys.get("max_steps", -1) <= 0 and keys["num_train_epochs"] <= 2 for keys in dynamic):
        rule = "be fixed or uncertainty in stages of 2 epochs or fewer: dynamic weighs tasks from the third epoch on"
        faults.append(Fault(f"{where}.loss_balancing", rule, "dynamic", "train for more epochs, or choose another"))
    return faults
