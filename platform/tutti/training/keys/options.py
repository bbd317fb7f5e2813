"""The keys of ``training:``: Tutti's own, those of TrainingArguments, reserved ones, and checks of their values."""

from __future__ import annotations

import copy
import dataclasses
import enum
import math
import random
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tutti.config.backbones import BACKBONE, backbone_faults
from tutti.config.conditions import fixed_values, without_undrawn
from tutti.config.raw import entries
from tutti.config.space import Distribution
from tutti.config.stages import OF_THE_TRIAL, STAGES, WEIGHTS, overlay, staged, without_task
from tutti.config.training import TrainingOptions
from tutti.config.yaml_file import show
from tutti.errors import Fault, TrialError, first_line, nearest
from tutti.training.keys.key_aliases import nearest_key
from tutti.training.keys.packages import missing_package_faults
from tutti.training.keys.reserved_keys import SET_BY_TUTTI
from tutti.training.keys.sharding_checks import config_faults, violated_sharding_rules

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
    # Each batch uses only the head of its task. With a single task the pooler of SqueezeBERT and what FlauBERT's
    # layerdrop leaves out are still unused.
    "ddp_find_unused_parameters": True,
    "ddp_broadcast_buffers": False,  # no buffer changes in training
}

_PHRASES = {  # of pydantic's messages, to the wording of Tutti's rules
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

COMPILERS = ("torch_compile_backend", "torch_compile_mode")  # either switches torch_compile on, unless that is false
_DRAWS = 64  # possible trials of a search space that are tried, to find one that can run

_CHECKPOINTING_SETTINGS = ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
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
    """Tutti's own options, and TrainingArguments' fields: the user's over Tutti's defaults.

    ``training`` has passed check_training, but a search space may have drawn an invalid combination.

    Raises:
        TrialError: if the keys are an invalid combination.
    """
    own_keys = {key: value for key, value in training.items() if key in TrainingOptions.model_fields}
    options = TrainingOptions(**own_keys)
    arguments = {**DEFAULTS, **{key: value for key, value in training.items() if key not in own_keys}}
    if arguments.get("torch_compile") is False:  # transformers would compile all the same
        arguments = {key: value for key, value in arguments.items() if key not in COMPILERS}
    if rules := options.violated_rules() + _violated_mixed_rules(options, arguments):
        got = ", ".join(f"{key}={value}" for key, value in training.items())
        remedy = "narrow the search space so that they do not meet"
        raise TrialError(*(Fault("the training keys", rule, got, remedy) for rule in rules))
    for key in _CHECKPOINTING_SETTINGS:  # transformers sets this only where there are no settings at all
        if arguments.get(key):
            arguments[key] = {"use_reentrant": False, **arguments[key]}
    return options, copy.deepcopy(arguments)  # TrainingArguments modifies fsdp_config in place


def _violated_mixed_rules(options: TrainingOptions, arguments: Mapping[str, Any]) -> list[str]:
    """Rules that Tutti's options and the fields of TrainingArguments violate together, each to follow "must"."""
    violations = {
        "have gradient_accumulation_steps 1 with adversarial: a batch is attacked along its own gradient": (
            options.adversarial and arguments.get("gradient_accumulation_steps", 1) > 1
        ),
        "have neither ema_decay nor swa_epochs with a schedule-free optimizer, which averages the weights itself": (
            (options.ema_decay or options.swa_epochs) and str(arguments.get("optim")).startswith("schedule_free")
        ),
        "have none of layer_lr_decay, head_learning_rate and `loss_balancing: uncertainty` with adagrad": (
            arguments.get("optim") == "adagrad"
            and (options.layer_lr_decay < 1 or options.head_learning_rate or options.loss_balancing == "uncertainty")
        ),
    }
    rules = [rule for rule, violated in violations.items() if violated]
    return rules + violated_sharding_rules(options, arguments)


def check_training(training: Mapping[str, Any], search_space: Mapping[str, Distribution], file: str) -> list[Fault]:
    """All faults of the keys of ``training`` and ``search_space``, each named by file and dotted key.

    A key is a field of TrainingOptions, or an init field of transformers.TrainingArguments that Tutti does not set
    itself. The choices of a search space's key, or its low and high, are checked as values of the key.
    ``stages.N.KEY`` is a key of stage N, counted from 0, and ``task_weights.NAME`` the weight of a task.
    """
    faults = []
    for key, value in training.items():
        faults += _key_faults(f"{file}: training.{key}", key) or _value_faults(f"{file}: training.{key}", key, value)
    stages = entries(training, STAGES)
    for index, stage in enumerate(stages):
        for key, value in stage.items() if isinstance(stage, dict) else ():
            what = f"{file}: training.{STAGES}.{index}.{key}"
            faults += _stage_faults(what, key) or _key_faults(what, key) or _value_faults(what, key, value)
    for full, distribution in search_space.items():
        what = f"{file}: search_space.{full}"
        if full == BACKBONE:
            faults += backbone_faults(what, distribution)
            continue
        key, key_faults = _stage_key(what, full, stages=len(stages))
        if full in ("evals_per_epoch", "best_by"):
            remedy = "set it below training:"
            key_faults = [Fault(what, "not vary: trials are compared by their evaluations", "a range of it", remedy)]
        key_faults = key_faults or _mapping_faults(what, full) or _key_faults(what, without_task(key))
        faults += (key_faults or _kind_faults(what, key, distribution)) or [
            fault for place, value in distribution.checked for fault in _value_faults(f"{what}.{place}", key, value)
        ]
    if not faults:
        where = f"{file}: training.{STAGES}.{{}}" if stages else f"{file}: training"
        draws = _draws(search_space, fixed_values(training))
        faults_by_draw = (_draw_faults(where, overlay(training, parameters)) for parameters in draws)
        first = next(faults_by_draw)
        # A study is valid if any of its trials can run; trials with an invalid combination fail by themselves.
        faults += first if first and all(faults_by_draw) else []
    return faults


def _draws(search_space: Mapping[str, Distribution], fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Possible trials of a search space at random, of its categorical choices and both ends of each range."""
    generator = random.Random(0)
    for _ in range(_DRAWS if search_space else 1):
        drawn = {key: generator.choice(distribution.checked)[1] for key, distribution in search_space.items()}
        yield without_undrawn(drawn, search_space, fixed)


def _draw_faults(where: str, training: Mapping[str, Any]) -> list[Fault]:
    stages = staged(training)
    faults = [fault for index, keys in enumerate(stages) for fault in _combination_faults(where.format(index), keys)]
    if all(keys.get("freeze_encoder") for keys in stages) and stages[0].get("reinit_layers"):
        rule = "be false in one stage at least with reinit_layers, which nothing would train"
        remedy = "take one of the two out, or freeze the encoder in some of several stages"
        faults.append(Fault(f"{where.format(0)}.freeze_encoder", rule, "true", remedy))
    return faults


def _stage_faults(what: str, key: str) -> list[Fault]:
    if key in OF_THE_TRIAL:
        return [Fault(what, "not differ from stage to stage", "a value for one", "set it beside `stages:`")]
    return []


def _stage_key(what: str, key: str, *, stages: int) -> tuple[str, list[Fault]]:
    """The training key that a search space's key refers to, and the faults of the stage in it."""
    if not key.startswith(f"{STAGES}."):
        return key, []
    _, index, name = (*key.split(".", 2), "", "")[:3]
    if not index.isdecimal() or int(index) >= stages or not name:
        rule = f"name a key of one of the {stages} stages, counted from 0" if stages else "have stages to vary"
        return name, [Fault(what, rule, repr(key), f"write it like {STAGES}.0.learning_rate, below training.{STAGES}")]
    return name, _stage_faults(what, name)


def _key_faults(what: str, key: str) -> list[Fault]:
    if key in SET_BY_TUTTI:
        return [Fault(what, f"not be set: {SET_BY_TUTTI[key]}", "a value for it", "remove the key")]
    known = [*TrainingOptions.model_fields, *(name for name in _argument_types() if name not in SET_BY_TUTTI)]
    if key in known:
        return []
    rule = "be an option of Tutti or a field of transformers.TrainingArguments"
    return [Fault(what, rule, f"the unknown key {key!r}", nearest_key(key, known))]


def _kind_faults(what: str, key: str, distribution: Distribution) -> list[Fault]:
    """The fault of a distribution of floats for an integer key, even if its low and high are whole numbers."""
    if key != without_task(key):
        return []  # a weight may be any number
    field = TrainingOptions.model_fields.get(key)
    annotation = field.annotation if field else _argument_types()[key]
    types = {
        inner for outer in typing.get_args(annotation) or (annotation,) for inner in typing.get_args(outer) or (outer,)
    }
    if distribution.type not in ("uniform", "log_uniform") or int not in types or float in types:
        return []
    remedy = "write `type: int`, with `log: true` for orders of magnitude"
    return [Fault(f"{what}.type", "be int or categorical for a key of whole numbers", repr(distribution.type), remedy)]


def _mapping_faults(what: str, full: str) -> list[Fault]:
    """The fault of a search space's key for the weights of all tasks at once, or in a single stage."""
    key = full.removeprefix(f"{STAGES}.").partition(".")[2] if full.startswith(f"{STAGES}.") else full
    if key not in WEIGHTS and (key == full or without_task(key) == key):
        return []
    rule, remedy = "vary the weight of one task, in all stages", f"write it like {without_task(key)}.NAME"
    return [Fault(what, rule, repr(full), remedy)]


def _value_faults(what: str, key: str, value: Any) -> list[Fault]:
    if (weights := without_task(key)) != key:
        faults = _value_faults(what, weights, {key.removeprefix(f"{weights}."): value})
        return [replace(fault, got=repr(value)) for fault in faults]
    if key == STAGES and isinstance(value, list | tuple):
        return _stage_type_faults(what, value)
    if key == "fsdp":  # transformers still accepts the values of its former versions too
        valid = value is None or isinstance(value, bool)
        return [] if valid else [Fault(what, "be true or false", repr(value), "write true; see fsdp_config for more")]
    if key == "fsdp_config":
        return config_faults(what, value)
    if key in _CHECKPOINTING_SETTINGS:
        return _checkpointing_faults(what, value)
    try:
        if key in TrainingOptions.model_fields:
            _check_own(key, value)
            return _choice_faults(what, key, value) or missing_package_faults(what, key, value)
        TypeAdapter(
            _argument_types()[key], config=ConfigDict(arbitrary_types_allowed=True, strict=True)
        ).validate_python(value)
    except ValidationError as error:
        rule = " or ".join(dict.fromkeys(_as_rule(each["msg"]) for each in error.errors()))
        return [Fault(what, rule, repr(value), "correct the value")]
    faults = _bound_faults(what, key, value) + _enum_faults(what, key, value) + _choice_faults(what, key, value)
    return faults or missing_package_faults(what, key, value)


def _checkpointing_faults(what: str, settings: Any) -> list[Fault]:
    # With reentrant checkpointing each trial of several workers fails, and without preserve_rng_state the backward pass
    # has another dropout than the forward pass.
    usual = {"use_reentrant": False, "preserve_rng_state": True}
    if settings is None or (
        isinstance(settings, dict)
        and settings.keys() <= {"every_n_layers", *usual}
        and all(settings.get(key, value) is value for key, value in usual.items())
    ):
        return []
    return [Fault(what, "hold every_n_layers alone", show(settings), "take out the others")]


def _stage_type_faults(what: str, stages: Sequence[Any]) -> list[Fault]:
    rule, remedy = "hold training keys", "write the stage's keys, or {} for those of all stages alone"
    return [
        Fault(f"{what}.{index}", rule, show(stage), remedy)
        for index, stage in enumerate(stages)
        if not isinstance(stage, dict)
    ]


def _choice_faults(what: str, key: str, value: Any) -> list[Fault]:
    """The fault of a name of attention, or of what compiles, that its library does not know."""
    if value is None or key not in ("attn_implementation", *COMPILERS):
        return []
    from tutti.training.keys.trial_build_checks import attention_faults, compiler_faults

    return compiler_faults(what, key, value) if key in COMPILERS else attention_faults(what, value)


def _check_own(key: str, value: Any) -> None:
    """Validates one of Tutti's own keys by itself; combinations are checked later."""
    field = TrainingOptions.model_fields[key]
    annotation: Any = field.annotation
    config = ConfigDict(strict=True, allow_inf_nan=False)
    TypeAdapter(
        Annotated[annotation, *field.metadata] if field.metadata else annotation, config=config
    ).validate_python(value)


def _as_rule(message: str) -> str:
    """Pydantic's message, such as "Input should be a valid number", as a rule that follows "must"."""
    for phrase, replacement in _PHRASES.items():
        message = message.replace(phrase, replacement)
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
        "be at least 1, or -1 for num_train_epochs": key != "max_steps" or value == -1 or value >= 1,
    }
    return [Fault(what, rule, repr(value), "correct the value") for rule, holds in rules.items() if not holds][:1]


def _enum_faults(what: str, key: str, value: Any) -> list[Fault]:
    for kind in typing.get_args(_argument_types()[key]):
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            names = [str(member.value) for member in kind]
            if key == "logging_strategy":
                names.remove("no")  # a trial logs at the end of an epoch in any case
            if value not in names:
                remedy = nearest(str(value), names, otherwise="name one of these")
                return [Fault(what, f"be one of {', '.join(names)}", repr(value), remedy)]
    return []


def _combination_faults(what: str, training: Mapping[str, Any]) -> list[Fault]:
    """Faults of combinations: of Tutti's own options, or refused by TrainingArguments, such as fp16 with bf16."""
    from tutti.training.keys.schedules import arguments_of
    from tutti.training.keys.trial_build_checks import build_faults

    try:
        options, arguments = split_training(training)
    except TrialError as error:
        return [Fault(what, fault.rule, "keys that do not go together", "change one of them") for fault in error.faults]
    try:
        # Checked without a GPU, since the machine that trains may be another one.
        args = arguments_of({**arguments, **FIXED, "use_cpu": True, "tf32": None})
    except (ValueError, TypeError, ImportError) as error:
        rule = "be a combination that transformers.TrainingArguments takes"
        return [Fault(what, rule, f'"{first_line(error)}"', "change the keys that it names")]
    return build_faults(what, args, best_by=options.best_by)


def _argument_types() -> dict[str, Any]:
    """The init fields of TrainingArguments, to their types."""
    from transformers import TrainingArguments

    types = typing.get_type_hints(TrainingArguments)
    return {field.name: types[field.name] for field in dataclasses.fields(TrainingArguments) if field.init}
