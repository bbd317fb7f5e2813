"""Checks for options that would have no effect in a trial, although each key is valid by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tutti.config.conditions import written
from tutti.config.stages import STAGES, without_task
from tutti.errors import Fault

# Keys that have no effect unless another key has this value (None: any value that switches it on).
_USED_WITH: Mapping[str, tuple[str, Any]] = {
    "lora_r": ("adapter", None),
    "lora_alpha": ("adapter", None),
    "lora_dropout": ("adapter", None),
    "lora_targets": ("adapter", None),
    "lora_layers": ("adapter", None),
    "use_rslora": ("adapter", None),
    "use_dora": ("adapter", None),
    "weights": ("adapter", None),
    "double_quant": ("bits", 4),
    "quant_type": ("bits", 4),
    "fsdp_config": ("fsdp", True),
    "activation_checkpointing_kwargs": ("activation_checkpointing", True),
    "dataloader_persistent_workers": ("dataloader_num_workers", None),
    "adversarial_epsilon": ("adversarial", None),
    "adversarial_start": ("adversarial", None),
    "sampling_temperature": ("task_sampling", "temperature"),
    "sampling_weights": ("task_sampling", "weights"),
    "stride": ("long_texts", "windows"),
    "words": ("head", "verbalizer"),
}
_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")
_WITHOUT_ADAM = ("adafactor", "adagrad", "rmsprop", "sgd")  # optimizers to which transformers passes none of them
_WITHOUT_EPSILON = (*_WITHOUT_ADAM, "lion", "paged_lion")
_BATCH, _BUDGET = "per_device_train_batch_size", "max_tokens_per_batch"
_EPOCHS, _STEPS = "num_train_epochs", "max_steps"
_OF_A_SCHEDULE = ("warmup_steps", "lr_scheduler_kwargs")
COMPILERS = ("torch_compile_backend", "torch_compile_mode")  # either switches torch_compile on, unless that is false
_UNUSED = "a value that no trial uses"


def unused_key_faults(
    possible: Mapping[str, Sequence[Any]], *, stages: int, varied: Collection[str], file: str
) -> list[Fault]:
    """Faults of keys that no trial uses, because the option they belong to is off in all trials, or replaces them.

    Args:
        possible: every key of ``training:`` and the search space, those of stages as ``stages.0.KEY``, to the values
            that it has in the trials.
        stages: number of stages; 0 without the key ``stages``.
        varied: the keys of the search space.
    """
    values_by_key: dict[str, list[Any]] = {}  # over all stages
    for full, values in possible.items():
        values_by_key.setdefault(_key(full), []).extend(values)
    faults = []
    for full in possible:
        what = f"{file}: {'search_space' if full in varied else 'training'}.{full}"
        switch, required = _USED_WITH.get(_key(full), (None, None))
        switch_values = values_by_key.get(switch, []) if switch else []
        if switch and not (required in switch_values if required is not None else any(switch_values)):
            rule = f"be used with `{switch}`" + ("" if required is None else f": {written(required)}")
            faults.append(Fault(what, rule, _UNUSED, f"set {switch}, or remove it"))
        if full in varied and stages and not any(_stages_of(full, possible, stages)):
            rule = "be left to some stage: each has a value of its own, which overrides it"
            remedy = f"take {_name(full)} out of a stage"
            if full == _name(full):  # a task's weight varies in all stages alone
                remedy += f", or vary it as {STAGES}.0.{full}"
            faults.append(Fault(what, rule, "a range that no trial uses", remedy))
        for rule, remedy in _replacements(full, possible, stages):
            faults.append(Fault(what, rule, _UNUSED, remedy))
    return faults


def _replacements(full: str, possible: Mapping[str, Sequence[Any]], stages: int) -> Iterator[tuple[str, str]]:
    """Rule and remedy of each key beside which no trial reads the value of ``full``."""
    key = _key(full)

    def always(other: str, replaces: Callable[[Any], object]) -> bool:
        values = [value for of_stage in _beside(full, other, possible, stages) for value in of_stage]
        return bool(values) and all(map(replaces, values))

    if key != _name(full) and always(key, lambda value: value is not None):
        yield f"be left out beside {key}, its present name, which alone counts", "take one of the two out"
    if key == _BATCH and always(_BUDGET, bool):
        rule = f"be left out where every trial has {_BUDGET}, which says how large a batch is"
        yield rule, f"take one of the two out, or vary {_BUDGET} with null among its choices"
    if key == _EPOCHS and always(_STEPS, lambda steps: (steps or -1) > 0):
        yield f"be left out where every trial has {_STEPS}, which says how long it trains", "take one of the two out"
    if key in _OF_A_SCHEDULE and any(possible[full]) and always("lr_scheduler_type", lambda name: name == "constant"):
        rule = "be left out with the schedule constant, whose rate is learning_rate from the first step on"
        yield rule, "take it out, or name constant_with_warmup or another lr_scheduler_type"
    if key in COMPILERS and any(possible[full]) and always("torch_compile", lambda value: value is False):
        yield "be left out where `torch_compile: false` switches it off", "take one of the two out"
    if key == "activation_checkpointing" and any(possible[full]) and always("freeze_encoder", bool):
        rule = "be left out where the encoder is frozen: no activation of it is kept"
        yield rule, "take one of the two out"
    if key == "logging_steps" and always("logging_strategy", lambda strategy: strategy == "epoch"):
        yield "be left out with `logging_strategy: epoch`, which says when a trial logs", "take one of the two out"
    without = _WITHOUT_EPSILON if key == "adam_epsilon" else _WITHOUT_ADAM
    if key in _ADAM and always("optim", lambda name: str(name).startswith(without)):
        names = dict.fromkeys(str(name) for names in _beside(full, "optim", possible, stages) for name in names)
        rule = f"be left out with {' or '.join(names)}, which does not read it"
        yield rule, "take it out, or choose another optim"


def _key(full: str) -> str:
    """A key without its stage or task, by its present name."""
    return _name(full).replace("gradient_checkpointing", "activation_checkpointing")


def _name(full: str) -> str:
    """A key without its stage or task."""
    return without_task(full.split(".", 2)[-1] if full.startswith(f"{STAGES}.") else full)


def _beside(full: str, other: str, possible: Mapping[str, Sequence[Any]], stages: int) -> Iterator[Sequence[Any]]:
    """The possible values of the key ``other`` in each stage that takes its value of a key from ``full``."""
    for prefix in _stages_of(full, possible, stages):
        yield possible.get(prefix + other, possible.get(other, [None]))


def _stages_of(full: str, possible: Mapping[str, Sequence[Any]], stages: int) -> Iterator[str]:
    """The prefix of each stage that takes its value of a key from ``full`` in some trials; "" without stages."""
    common = not full.startswith(f"{STAGES}.")
    for prefix in [f"{STAGES}.{index}." for index in range(stages)] or [""]:
        own = prefix + _name(full)
        values = possible.get(own, [])
        # None beside other values: trials that do not draw it. None alone: the stage sets it to null.
        if full == own or (common and (not values or (None in values and len(values) > 1))):
            yield prefix


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
    optimizers = [str(keys.get("optim")) for keys in stages if keys.get("optim_target_modules")]
    if optimizers and not any(name.startswith(("galore", "apollo")) for name in optimizers):
        rule = "be left out without an optimizer of GaLore or APOLLO, which alone read it"
        faults.append(Fault(f"{where}.optim_target_modules", rule, "it with another optim", "take it out"))
    dynamic = [keys for keys in stages if keys.get("loss_balancing") == "dynamic"]
    if dynamic and all(keys.get("max_steps", -1) <= 0 and keys["num_train_epochs"] <= 2 for keys in dynamic):
        rule = "be fixed or uncertainty in stages of 2 epochs or fewer: dynamic weighs tasks from the third epoch on"
        faults.append(Fault(f"{where}.loss_balancing", rule, "dynamic", "train for more epochs, or choose another"))
    return faults
