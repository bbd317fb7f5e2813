"""Tricks that would never come into play in a trial, though each key by itself is sound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tutti.errors import Fault


def useless_faults(where: str, stages: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """Of keys that go together and do nothing: a start beyond the last epoch, what a frozen encoder never
    shows, a mean over one or over what is equal.

    Args:
        where: of a stage, as messages give it, with ``{}`` for its index.
        stages: the sound training keys of each, with those of all stages and the defaults.
    """
    late = [fault for index, keys in enumerate(stages) for fault in _late_faults(where.format(index), keys)]
    return late or _frozen_faults(where.format(0), stages) + _idle_faults(where.format(0), stages)


def _late_faults(where: str, keys: Mapping[str, Any]) -> list[Fault]:
    if keys.get("max_steps", -1) > 0:  # how many epochs they are shows with the data
        return []
    epochs, told = keys["num_train_epochs"], []
    if keys.get("swa_epochs", 0) > math.ceil(epochs):
        rule, remedy = f"be at most num_train_epochs, {epochs:g}", "lower it, or train for more epochs"
        told.append(Fault(f"{where}.swa_epochs", rule, str(keys["swa_epochs"]), remedy))
    if keys.get("swa_epochs") == 1:
        rule, remedy = "be 0 or at least 2: the mean over one epoch is the epoch itself", "raise it, or take it out"
        told.append(Fault(f"{where}.swa_epochs", rule, "1", remedy))
    if keys.get("adversarial") and keys.get("adversarial_start", 0) >= epochs:
        rule, remedy = f"be below num_train_epochs, {epochs:g}", "lower it, or train for more epochs"
        told.append(Fault(f"{where}.adversarial_start", rule, str(keys["adversarial_start"]), remedy))
    return told


def _frozen_faults(where: str, stages: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """Of a stage that freezes the encoder, nothing: heads may come first. Where all do, the encoder never trains."""
    if not all(keys.get("freeze_encoder") for keys in stages):
        return []
    of_encoder = {
        "adapter": stages[0].get("adapter"),
        "reinit_layers": stages[0].get("reinit_layers"),
        "mixout": any(keys.get("mixout") for keys in stages),
        "layer_lr_decay": any(keys.get("layer_lr_decay", 1) < 1 for keys in stages),
    }
    rule = "be false in one stage at least with {}, which is about the encoder's weights: only heads would train"
    remedy = "take one of the two out, or freeze the encoder in some of several stages"
    return [
        Fault(f"{where}.freeze_encoder", rule.format(name), f"true with {name}", remedy)
        for name, on in of_encoder.items()
        if on
    ]


def _idle_faults(where: str, stages: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """Of what comes to the same as without in every stage."""
    told = []
    masks = stages[0].get("head_dropout_samples", 1)
    if masks > 1 and stages[0].get("head_dropout") == 0:
        rule, remedy = "be above 0 with head_dropout_samples: without it all masks are one", "change one of the two"
        told.append(Fault(f"{where}.head_dropout", rule, f"0 with {masks} samples", remedy))
    dynamic = [keys for keys in stages if keys.get("loss_balancing") == "dynamic"]
    if dynamic and all(keys.get("max_steps", -1) <= 0 and keys["num_train_epochs"] <= 2 for keys in dynamic):
        rule = "be fixed or uncertainty in stages of 2 epochs or fewer: dynamic weighs tasks from the third epoch on"
        told.append(Fault(f"{where}.loss_balancing", rule, "dynamic", "train for more epochs, or choose another"))
    return told
