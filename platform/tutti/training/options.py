"""The keys of ``training:``: which are ours, which are TrainingArguments', which nobody may set, and their values."""

from __future__ import annotations

import copy
import dataclasses
import enum
import itertools
import math
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tutti.config.conditions import fixed_values, without_undrawn
from tutti.config.space import Categorical, Distribution
from tutti.config.stages import OF_THE_TRIAL, STAGES, overlay, staged
from tutti.config.training import TrainingOptions
from tutti.config.yaml_file import show
from tutti.errors import Fault, TrialError, nearest
from tutti.modeling.adapters import INSTALL, has_bitsandbytes
from tutti.training.names import nearest_key
from tutti.training.sharding_checks import config_faults, unsharded_rules
from tutti.training.useless import useless_faults

DEFAULTS: Mapping[str, Any] = {
    "learning_rate": 5e-5,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 64,
    "weight_decay": 0.01,
    "warmup_steps": 0.1,  # below 1: the share of all steps
    "logging_steps": 10,
    "seed": 0,
}

FIXED: Mapping[str, Any] = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "report_to": "none",
    "disable_tqdm": True,
    "remove_unused_columns": False,
    "average_tokens_across_devices": False,
    "logging_nan_inf_filter": False,
    "ddp_find_unused_parameters": True,  # a batch uses the head of one task alone
    "ddp_broadcast_buffers": False,  # none changes in training
}

_REASONS = {
    "every trial has a folder of its own": "output_dir logging_dir",
    "Tutti trains, evaluates and predicts in every trial": "do_train do_eval do_predict",
    "Tutti evaluates every task evals_per_epoch times an epoch, in the precision of training": "eval_strategy "
    "evaluation_strategy evaluate_during_training eval_steps eval_delay "
    "eval_on_start eval_accumulation_steps eval_do_concat_batches eval_use_gather_object batch_eval_metrics "
    "include_for_metrics prediction_loss_only bf16_full_eval fp16_full_eval",
    "Tutti keeps the checkpoint with the best mean score": "load_best_model_at_end metric_for_best_model "
    "greater_is_better save_strategy save_steps save_total_limit save_only_model save_on_each_node "
    "enable_jit_checkpoint",
    "Tutti goes on from the newest whole state by itself": "resume_from_checkpoint ignore_data_skip "
    "restore_callback_states_from_checkpoint",
    "Tutti shows trials in MLflow and in its own table": "report_to run_name project trackio_space_id "
    "trackio_bucket_id trackio_static_space_id disable_tqdm include_num_input_tokens_seen log_on_each_node",
    "nothing is pushed to a hub": "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push "
    "hub_revision",
    "Ray starts the workers, as many as resources.workers says": "local_rank ddp_backend ddp_find_unused_parameters "
    "ddp_broadcast_buffers ddp_static_graph parallelism_config accelerator_config",
    "Tutti shards weights by FSDP, with `fsdp: true`": "deepspeed",
    "Tutti draws batches of one task each": "train_sampling_strategy length_column_name remove_unused_columns "
    "label_names dataloader_drop_last auto_find_batch_size",
    "Tutti normalises the loss over all workers": "average_tokens_across_devices",
    "a loss that is not finite ends the trial": "logging_nan_inf_filter",
    "it serves models that generate text": "use_cache use_liger_kernel liger_kernel_config",
}
SET_BY_TUTTI: Mapping[str, str] = {key: reason for reason, keys in _REASONS.items() for key in keys.split()}

_WORDS = {  # of pydantic's sentences, and ours
    "Input should ": "",
    "Value error, ": "",
    "a valid boolean": "true or false",
    "a valid ": "a ",
    "a tuple": "a list",
    "a dictionary": "a mapping",
    "a integer": "a whole number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}

_OF_BITSANDBYTES = re.compile("paged_|lion_|ademamix|rmsprop_bnb|adamw_8bit|adamw_bnb")  # values of `optim`

_USED_WITH: Mapping[str, tuple[str, Any]] = {  # keys that do nothing unless another has this value; none for any
    "lora_r": ("adapter", None),
    "lora_alpha": ("adapter", None),
    "lora_dropout": ("adapter", None),
    "double_quant": ("bits", 4),
    "quant_type": ("bits", 4),
    "fsdp_config": ("fsdp", True),
    "adversarial_epsilon": ("adversarial", None),
    "adversarial_start": ("adversarial", None),
    "sampling_temperature": ("task_sampling", "temperature"),
    "sampling_weights": ("task_sampling", "weights"),
}

MOST_DRAWS = 256  # of a search space's trials that are looked at for one that can run

_POSITIVE = frozenset({"num_train_epochs", "learning_rate", "logging_steps"})
_AT_LEAST_1 = frozenset({"per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"})
_SEEDS = frozenset({"seed", "data_seed"})
_AT_LEAST_0 = _SEEDS | {
    "weight_decay",
    "warmup_steps",
    "max_grad_norm",
    "adam_epsilon",
    "dataloader_num_workers",
    "neftune_noise_alpha",
}
_BELOW_1 = frozenset({"adam_beta1", "adam_beta2", "label_smoothing_factor"})


def split_training(training: Mapping[str, Any]) -> tuple[TrainingOptions, dict[str, Any]]:
    """Our own options, and TrainingArguments' fields with Tutti's defaults beneath the user's.

    ``training`` has passed check_training; still a search space may have chosen what does not go together.

    Raises:
        TrialError: where it did.
    """
    own = {key: value for key, value in training.items() if key in TrainingOptions.model_fields}
    try:
        options = TrainingOptions(**own)
    except ValidationError as error:
        remedy = "narrow the search space so that they do not meet"
        got = ", ".join(f"{key}={value}" for key, value in own.items())
        raise TrialError(*(Fault("the training keys", rule, got, remedy) for rule in _rules(error))) from error
    arguments = {**DEFAULTS, **{key: value for key, value in training.items() if key not in own}}
    if options.adversarial and arguments.get("gradient_accumulation_steps", 1) > 1:
        rule = "have gradient_accumulation_steps 1 with adversarial: a batch is attacked along its own gradient"
        raise TrialError(Fault("the training keys", rule, f"adversarial={options.adversarial}", "change one of them"))
    if (options.ema_decay or options.swa_epochs) and str(arguments.get("optim")).startswith("schedule_free"):
        rule = "have neither ema_decay nor swa_epochs with a schedule-free optimizer, which averages the weights itself"
        raise TrialError(Fault("the training keys", rule, f"optim={arguments['optim']}", "change one of them"))
    if rules := unsharded_rules(options, arguments):
        raise TrialError(*(Fault("the training keys", rule, "others", "change one of them") for rule in rules))
    return options, copy.deepcopy(arguments)  # TrainingArguments fills in fsdp_config


def check_training(training: Mapping[str, Any], *, search_space: Mapping[str, Distribution], file: str) -> list[Fault]:
    """Every fault of the keys of ``training`` and of ``search_space``, each named by file and dotted key.

    A key is a field of TrainingOptions or an init field of transformers.TrainingArguments that Tutti does not set
    itself. A search space's choices, or its low and high, are checked as values of their key; ``stages.N.KEY`` is a
    key of the stage N, counted from 0.
    """
    faults = []
    for key, value in training.items():
        faults += _key_faults(f"{file}: training.{key}", key) or _value_faults(f"{file}: training.{key}", key, value)
    stages = training.get(STAGES)
    stages = list(stages) if isinstance(stages, list | tuple) else []
    for index, stage in enumerate(stages):
        for key, value in stage.items() if isinstance(stage, dict) else ():
            what = f"{file}: training.{STAGES}.{index}.{key}"
            faults += _stage_faults(what, key) or _key_faults(what, key) or _value_faults(what, key, value)
    for full, distribution in search_space.items():
        what = f"{file}: search_space.{full}"
        key, found = _stage_key(what, full, stages=len(stages))
        if full == "evals_per_epoch":
            remedy = "set it below training:"
            found = [Fault(what, "not vary: trials are compared by their evaluations", "a range of it", remedy)]
        faults += (found or _key_faults(what, key) or _kind_faults(what, key, distribution)) or [
            fault for place, value in _values(distribution) for fault in _value_faults(f"{what}.{place}", key, value)
        ]
    faults = faults or _idle_faults(training, search_space, file=file)
    if not faults:
        where = f"{file}: training.{STAGES}.{{}}" if stages else f"{file}: training"
        drawn = itertools.islice(_draws(search_space, fixed_values(training)), MOST_DRAWS)
        told = (_drawn_faults(where, overlay(training, parameters)) for parameters in drawn)
        first = next(told)
        # A study goes ahead if any trial can: those that draw what does not go together fail by themselves.
        faults += first if first and all(told) else []
    return faults


def _idle_faults(training: Mapping[str, Any], search_space: Mapping[str, Distribution], *, file: str) -> list[Fault]:
    """Of keys that no trial uses: the switch that they belong to is off in all of them."""
    everywhere = {full: [value] for full, value in fixed_values(training).items()}
    everywhere |= {full: [value for _, value in _values(drawn)] for full, drawn in search_space.items()}
    given: dict[str, list[Any]] = {}  # by key, whichever stage it stands in
    for full, values in everywhere.items():
        given.setdefault(full.split(".")[-1], []).extend(values)
    faults = []
    for full in everywhere:
        switch, wanted = _USED_WITH.get(full.split(".")[-1], (None, None))
        on = given.get(switch, []) if switch else []
        if switch is None or (wanted in on if wanted is not None else any(on)):
            continue
        what = f"{file}: {'search_space' if full in search_space else 'training'}.{full}"
        rule = f"stand beside `{switch}`" + ("" if wanted is None else f": {wanted}")
        faults.append(Fault(what, rule, "a value that no trial uses", f"set {switch}, or remove it"))
    return faults


def _draws(search_space: Mapping[str, Distribution], fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Trials that a search space can give: every choice of a category with every other, and both ends of a range."""
    values = [[value for _, value in _values(distribution)] for distribution in search_space.values()]
    return (
        without_undrawn(dict(zip(search_space, drawn, strict=True)), search_space, fixed)
        for drawn in itertools.product(*values)
    )


def _drawn_faults(where: str, training: Mapping[str, Any]) -> list[Fault]:
    stages = staged(training)
    told = [fault for index, keys in enumerate(stages) for fault in _combination_faults(where.format(index), keys)]
    return told or useless_faults(where, [{**DEFAULTS, **keys} for keys in stages])


def _stage_faults(what: str, key: str) -> list[Fault]:
    if key in OF_THE_TRIAL:
        return [Fault(what, "not differ from stage to stage", "a value for one", "set it beside `stages:`")]
    return []


def _stage_key(what: str, key: str, *, stages: int) -> tuple[str, list[Fault]]:
    """The key that a search space's key stands for, and what is wrong with the stage that it names."""
    if not key.startswith(f"{STAGES}."):
        return key, []
    _, index, name = (*key.split(".", 2), "", "")[:3]
    if not index.isdecimal() or int(index) >= stages or not name:
        rule = f"name a key of one of the {stages} stages, counted from 0" if stages else "have stages to vary"
        return name, [Fault(what, rule, repr(key), f"write it like {STAGES}.0.learning_rate, below training.{STAGES}")]
    return name, _stage_faults(what, name)


def _values(distribution: Distribution) -> Iterator[tuple[str, Any]]:
    """What a distribution can give, each with its place under the key."""
    if isinstance(distribution, Categorical):
        yield from ((f"choices.{index}", choice) for index, choice in enumerate(distribution.choices))
    else:
        yield from (("low", distribution.low), ("high", distribution.high))


def _key_faults(what: str, key: str) -> list[Fault]:
    if key in SET_BY_TUTTI:
        return [Fault(what, f"not be set: {SET_BY_TUTTI[key]}", "a value for it", "remove the key")]
    known = [*TrainingOptions.model_fields, *(name for name in _argument_types() if name not in SET_BY_TUTTI)]
    if key in known:
        return []
    rule = "be an option of Tutti or a field of transformers.TrainingArguments"
    return [Fault(what, rule, f"the unknown key {key!r}", nearest_key(key, known))]


def _kind_faults(what: str, key: str, distribution: Distribution) -> list[Fault]:
    """Of a distribution of floats for a key of whole numbers, even where its low and high are whole."""
    own = TrainingOptions.model_fields.get(key)
    kind = own.annotation if own else _argument_types()[key]
    kinds = {inner for outer in typing.get_args(kind) or (kind,) for inner in typing.get_args(outer) or (outer,)}
    if distribution.type not in ("uniform", "log_uniform") or int not in kinds or float in kinds:
        return []
    remedy = "write `type: int`, with `log: true` for orders of magnitude"
    return [Fault(f"{what}.type", "be int or categorical for a key of whole numbers", repr(distribution.type), remedy)]


def _value_faults(what: str, key: str, value: Any) -> list[Fault]:
    if key == STAGES and isinstance(value, list | tuple):
        return _no_stage_faults(what, value)
    if key == "fsdp":  # transformers still takes what it meant in former versions too
        known = value is None or isinstance(value, bool)
        return [] if known else [Fault(what, "be true or false", repr(value), "write true; see fsdp_config for more")]
    if key == "fsdp_config":
        return config_faults(what, value)
    try:
        if key in TrainingOptions.model_fields:
            _check_own(key, value)
            return _own_faults(what, key, value)
        TypeAdapter(
            _argument_types()[key], config=ConfigDict(arbitrary_types_allowed=True, strict=True)
        ).validate_python(value)
    except ValidationError as error:
        rule = " or ".join(dict.fromkeys(_rules(error)))
        return [Fault(what, rule, repr(value), "correct the value")]
    faults = _bound_faults(what, key, value) + _enum_faults(what, key, value)
    return faults or _package_faults(what, key, value)


def _no_stage_faults(what: str, stages: Sequence[Any]) -> list[Fault]:
    rule, remedy = "hold training keys", "write the stage's keys, or {} for those of all stages alone"
    return [
        Fault(f"{what}.{index}", rule, show(stage), remedy)
        for index, stage in enumerate(stages)
        if not isinstance(stage, dict)
    ]


def _own_faults(what: str, key: str, value: Any) -> list[Fault]:
    from tutti.training.built import attention_faults

    return attention_faults(what, value) if key == "attn_implementation" else _package_faults(what, key, value)


def _check_own(key: str, value: Any) -> None:
    """One of Tutti's own keys by itself; whether it goes with the others is seen later.

    Raises:
        ValidationError: where it has not its type, or is out of bounds.
    """
    known = TrainingOptions.model_fields[key]
    kind: Any = known.annotation
    TypeAdapter(
        Annotated[kind, *known.metadata] if known.metadata else kind, config=ConfigDict(strict=True)
    ).validate_python(value)


def _rules(error: ValidationError) -> list[str]:
    return [_as_rule(detail["msg"]) for detail in error.errors()]


def _as_rule(message: str) -> str:
    """Pydantic's "Input should be a valid number" as what follows "must"."""
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message


def _bound_faults(what: str, key: str, value: Any) -> list[Fault]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    rules = {
        "be a finite number": math.isfinite(value),
        "be above 0": key not in _POSITIVE or value > 0,
        "be at least 1": key not in _AT_LEAST_1 or value >= 1,
        "be at least 0": key not in _AT_LEAST_0 | _BELOW_1 or value >= 0,
        "be below 1": key not in _BELOW_1 or value < 1,
        "be below 2**32": key not in _SEEDS or value < 2**32,
    }
    return [Fault(what, rule, repr(value), "correct the value") for rule, holds in rules.items() if not holds][:1]


def _enum_faults(what: str, key: str, value: Any) -> list[Fault]:
    for kind in typing.get_args(_argument_types()[key]):
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            names = [str(member.value) for member in kind]
            if value not in names:
                remedy = nearest(str(value), names, otherwise="name one of these")
                return [Fault(what, f"be one of {', '.join(names)}", repr(value), remedy)]
    return []


def _package_faults(what: str, key: str, value: Any) -> list[Fault]:
    """Of a value that needs the package bitsandbytes where it is not installed: every trial would fail."""
    needed = (key == "bits" and value) or (key == "optim" and _OF_BITSANDBYTES.match(str(value)))
    if not needed or has_bitsandbytes():
        return []
    return [Fault(what, "have the package bitsandbytes installed", f"{value!r} without it", INSTALL)]


def _combination_faults(what: str, training: Mapping[str, Any]) -> list[Fault]:
    """What does not go together: Tutti's own switches, and what TrainingArguments refuses, such as fp16 with bf16."""
    from transformers import TrainingArguments

    from tutti.training.built import built_faults

    try:
        arguments = split_training(training)[1]
    except TrialError as error:
        return [Fault(what, fault.rule, "keys that do not go together", "change one of them") for fault in error.faults]
    try:
        # The machine that checks need not be the one that trains: ask for no GPU here.
        made = TrainingArguments(**{**arguments, **FIXED, "use_cpu": True, "tf32": None})
    except (ValueError, TypeError, ImportError) as error:
        rule = "be a combination that transformers.TrainingArguments takes"
        return [Fault(what, rule, f'"{str(error).splitlines()[0]}"', "change the keys that it names")]
    return built_faults(what, made)


def _argument_types() -> dict[str, Any]:
    """Init fields of TrainingArguments to their types."""
    from transformers import TrainingArguments

    types = typing.get_type_hints(TrainingArguments)
    return {field.name: types[field.name] for field in dataclasses.fields(TrainingArguments) if field.init}
