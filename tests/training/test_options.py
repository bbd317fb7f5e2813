from __future__ import annotations

import dataclasses

import pytest
from transformers import TrainingArguments

from tutti.config.space import SearchSpace
from tutti.training.options import DEFAULTS, FIXED, SET_BY_TUTTI, check_training, split_training


def _faults(training: dict[str, object]) -> list[str]:
    return [str(fault) for fault in check_training(training, search_space={}, file="study.yaml")]


def _space_faults(space: dict[str, object]) -> list[str]:
    checked = SearchSpace.model_validate(space).root
    return [str(fault) for fault in check_training({}, search_space=checked, file="study.yaml")]


def test_what_users_usually_write_passes() -> None:
    assert not _faults(
        {"learning_rate": 3e-5, "num_train_epochs": 2, "bf16": True, "pooling": "cls", "ema_decay": None}
        | {"lr_scheduler_type": "cosine", "optim": "adamw_torch", "warmup_steps": 0.06, "max_grad_norm": 1}
    )


def test_our_defaults_and_fixed_values_are_fields_of_training_arguments() -> None:
    fields = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    assert set(DEFAULTS) | set(FIXED) <= fields
    assert set(FIXED) <= set(SET_BY_TUTTI)
    assert not set(DEFAULTS) & set(SET_BY_TUTTI)
    assert set(SET_BY_TUTTI) - fields == {"logging_dir"}


def test_an_unknown_key_names_the_nearest_one() -> None:
    (fault,) = _faults({"learning_rte": 1e-5})
    assert fault.startswith("study.yaml: training.learning_rte must be")
    assert "did you mean 'learning_rate'?" in fault


def test_a_key_that_tutti_sets_says_why() -> None:
    (fault,) = _faults({"output_dir": "here"})
    assert fault.startswith("study.yaml: training.output_dir must not be set: every trial has a folder of its own;")


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("learning_rate", "5e-5", "be a number"),
        ("learning_rate", True, "be a number"),
        ("learning_rate", 0, "be above 0"),
        ("learning_rate", float("nan"), "be a finite number"),
        ("per_device_train_batch_size", 16.0, "be a whole number"),
        ("per_device_train_batch_size", 0, "be at least 1"),
        ("label_smoothing_factor", 1.0, "be below 1"),
        ("seed", -1, "be at least 0"),
        ("bf16", "yes", "be a boolean"),
        ("pooling", "max", "be 'attention', 'cls' or 'mean'"),
        ("ema_decay", 1.0, "be below 1"),
        ("lr_scheduler_type", "cosin", "be one of linear, cosine"),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(key: str, value: object, rule: str) -> None:
    (fault,) = _faults({key: value})
    assert fault.startswith(f"study.yaml: training.{key} must {rule}")
    assert f"got {value!r};" in fault


def test_a_combination_that_cannot_be_is_a_fault() -> None:
    (fault,) = _faults({"bf16": True, "fp16": True})
    assert "At most one of fp16 and bf16" in fault


def test_all_faults_are_reported_at_once() -> None:
    faults = _faults({"learning_rte": 1, "pooling": "max", "report_to": "all", "seed": -1})
    assert len(faults) == 4


def test_what_a_search_space_can_give_is_checked_as_a_value() -> None:
    faults = _space_faults(
        {
            "learning_rate": {"type": "uniform", "low": 0, "high": 1e-3},
            "pooling": {"type": "categorical", "choices": ["cls", "max"]},
            "per_device_train_batch_size": {"type": "uniform", "low": 8, "high": 16},
            "ema_dekay": {"type": "uniform", "low": 0.9, "high": 0.99},
        }
    )
    starts = [fault.split(" must ")[0] for fault in faults]
    assert starts == [
        "study.yaml: search_space.learning_rate.low",
        "study.yaml: search_space.pooling.choices.1",
        "study.yaml: search_space.per_device_train_batch_size.type",
        "study.yaml: search_space.ema_dekay",
    ]


@pytest.mark.parametrize("kind", ["uniform", "log_uniform"])
@pytest.mark.parametrize("key", ["max_length", "per_device_train_batch_size", "seed", "max_steps"])
def test_a_distribution_of_floats_does_not_fit_a_key_of_whole_numbers(key: str, kind: str) -> None:
    (fault,) = _space_faults({key: {"type": kind, "low": 16, "high": 64}})
    assert fault.startswith(
        f"study.yaml: search_space.{key}.type must be int or categorical for a key of whole numbers"
    )
    assert "write `type: int`" in fault
    assert not _space_faults({key: {"type": "int", "low": 16, "high": 64}})


def test_a_sound_search_space_has_no_fault() -> None:
    assert not _space_faults(
        {
            "learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 1e-3},
            "per_device_train_batch_size": {"type": "int", "low": 8, "high": 32, "step": 8},
            "ema_decay": {"type": "categorical", "choices": [None, 0.99]},
        }
    )


def test_the_users_values_lie_over_our_defaults() -> None:
    options, arguments = split_training({"pooling": "mean", "learning_rate": 1e-3, "adam_beta2": 0.98})
    assert options.pooling == "mean"
    assert arguments == {**DEFAULTS, "learning_rate": 1e-3, "adam_beta2": 0.98}
