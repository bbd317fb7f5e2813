"""Keys that no trial uses are named in one notice, and refused nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from training_faults import training_faults

from tutti.config.study import StudyConfig
from tutti.training.keys.idle import idle_notices, incomparable_notices

CLASSES, VALUE = {"layout": "table", "train": "t.csv"}, {"layout": "table", "train": "t.csv", "metric": "pearson"}
PAIRS = {**CLASSES, "columns": {"text_b": "other"}}
CHOICE = {**CLASSES, "columns": {"choices": "options"}}
GRADES = {**CLASSES, "ordered": True, "metric": "quadratic_kappa"}
RATE = {"type": "log_uniform", "low": 1e-5, "high": 1e-3}


def notices(training: dict[str, Any], space: dict[str, Any] | None = None, *tasks: Any, **sections: Any) -> list[str]:
    named = {f"task{index}": task for index, task in enumerate(tasks or (CLASSES, VALUE))}
    study = {"study": "s", "backbone": "b", "tasks": named, "training": training, "search_space": space or {}}
    return idle_notices(StudyConfig.model_validate(study | sections))


def choices(*values: Any, **condition: Any) -> dict[str, Any]:
    return {"type": "categorical", "choices": [*values], "when": condition}


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"lora_r": 8}, "training.lora_r has no effect without adapter"),
        ({"lora_r": 8, "adapter": None}, "training.lora_r has no effect without adapter"),
        ({"adapter": "lora", "bits": 8, "quant_type": "fp4"}, "training.quant_type has no effect without bits: 4"),
        (
            {"stages": [{}, {"adversarial_start": 1}]},
            "training.stages.1.adversarial_start has no effect without adversarial",
        ),
        (
            {"adversarial": "awp", "adversarial_start": 3},
            "training.adversarial_start has no effect after the last epoch",
        ),
        (
            {"task_sampling": "uniform", "sampling_temperature": 3.0},
            "training.sampling_temperature has no effect without task_sampling: temperature",
        ),
        (
            {"per_device_train_batch_size": 8, "max_tokens_per_batch": 512},
            "training.per_device_train_batch_size has no effect beside max_tokens_per_batch",
        ),
        (
            {"num_train_epochs": 2, "stages": [{"max_steps": 9}, {"max_steps": 9}]},
            "training.num_train_epochs has no effect beside max_steps",
        ),
        (
            {"warmup_steps": 0.03, "lr_scheduler_type": "constant"},
            "training.warmup_steps has no effect with lr_scheduler_type: constant",
        ),
        (
            {"adam_beta2": 0.98, "optim": "adafactor"},
            "training.adam_beta2 has no effect with this optim, which does not read it",
        ),
        ({"adapter": "lora", "freeze_encoder": True}, "training.adapter has no effect beside freeze_encoder"),
        ({"swa_epochs": 1}, "training.swa_epochs has no effect as the mean over a single epoch"),
        (
            {"loss_balancing": "dynamic", "num_train_epochs": 2},
            "training.loss_balancing has no effect before the third epoch",
        ),
    ],
)
def test_a_key_that_no_trial_uses_is_named_and_not_refused(training: dict[str, Any], told: str) -> None:
    assert notices(training) == [f"notice: {told}"]
    assert training_faults(training) == []


@pytest.mark.parametrize(
    ("training", "space"),
    [
        ({"adversarial_start": 1, "stages": [{}, {"adversarial": "awp"}]}, {}),
        ({"lora_r": 8}, {"adapter": choices(None, "lora")}),
        ({"per_device_train_batch_size": 8, "stages": [{"max_tokens_per_batch": 512}, {}]}, {}),
        ({"num_train_epochs": 2, "max_steps": -1}, {}),
        ({"loss_balancing": "dynamic", "max_steps": 99, "stages": [{"max_steps": -1, "num_train_epochs": 1}, {}]}, {}),
        ({"adapter": "lora", "stages": [{"freeze_encoder": True}, {}]}, {}),
        ({"warmup_steps": 0, "lr_scheduler_type": "constant"}, {}),
        ({"adam_beta2": 0.9}, {"optim": choices("sgd", "adamw_torch")}),
        ({"stages": [{"learning_rate": 1e-4}, {}]}, {"learning_rate": RATE}),
        ({"pooling": "cls"}, {"head_dropout": {"type": "uniform", "low": 0, "high": 0.1, "when": {"pooling": "cls"}}}),
    ],
)
def test_a_key_that_a_stage_or_a_trial_uses_is_not_named(training: dict[str, Any], space: dict[str, Any]) -> None:
    assert notices(training, space) == []


def test_a_varied_key_that_no_trial_draws_or_each_stage_overrides_is_named() -> None:
    rates = {"learning_rate": RATE, "stages.1.learning_rate": RATE}
    assert notices({"stages": [{"learning_rate": 1e-4}, {}]}, rates) == [
        "notice: search_space.learning_rate has no effect as each stage has its own"
    ]
    assert notices({"pooling": "mean"}, {"head_dropout": choices(0.1, 0.2, pooling="cls")}) == [
        "notice: search_space.head_dropout has no effect with pooling: mean"
    ]


def test_a_value_that_the_search_space_replaces_in_every_trial_is_named() -> None:
    always = {"learning_rate": {"type": "uniform", "low": 1e-5, "high": 1e-4}}
    told = "notice: training.learning_rate has no effect as the search space varies it"
    assert notices({"learning_rate": 1e-3}, always) == [told]
    sometimes = {
        "learning_rate": {**always["learning_rate"], "when": {"pooling": ["mean"]}},
        "pooling": {"type": "categorical", "choices": ["mean", "attention"]},
    }
    assert notices({"learning_rate": 1e-3}, sometimes) == []


def test_all_keys_without_effect_are_on_one_line() -> None:
    told = "notice: training.lora_r has no effect without adapter, training.stride has no effect without truncation: "
    assert notices({"lora_r": 8, "stride": 4}) == [f"{told}windows"]


@pytest.mark.parametrize(
    ("key", "value", "task", "why"),
    [
        ("class_weights", "balanced", VALUE, "without a task of classes or labels"),
        ("focal_gamma", 2.0, VALUE, "without a task of classes or labels"),
        ("ordered_head", "corn", CLASSES, "without a task of ordered classes"),
        ("class_weights", "balanced", CHOICE, "with candidates or pairs, whose places are no classes"),
        (
            "swap",
            True,
            CHOICE,
            "with candidates, which follow their context, and with texts that are read by themselves",
        ),
        (
            "swap",
            True,
            {**CLASSES, "template": "{a} or {b}"},
            "without pairs, whose texts are named as columns.text and columns.text_b, beside a template too",
        ),
        (
            "truncation",
            "windows",
            CHOICE,
            "with candidates, of which the context of each is cut, and with texts that are compared, which are cut",
        ),
        ("task_sampling", "uniform", CLASSES, "in a study of one task"),
    ],
)
def test_a_key_that_is_for_other_tasks_is_named(key: str, value: Any, task: Any, why: str) -> None:
    assert notices({key: value}, {}, task) == [f"notice: training.{key} has no effect {why}"]
    assert not notices({key: value}, {}, PAIRS, GRADES)


def test_ordered_classes_that_are_learnt_as_one_number_have_no_probabilities_to_smooth() -> None:
    training = {"focal_gamma": 2.0, "ordered_head": "regression"}
    assert notices(training, {}, GRADES) == ["notice: training.focal_gamma has no effect with ordered_head: regression"]


def test_a_target_that_no_score_can_reach_is_named() -> None:
    errors, weights = {**VALUE, "metric": "neg_mse"}, {"objective_weights": {"task1": 3}}
    assert notices({}, {}, CLASSES, search={"target_score": 85}) == [
        "notice: search.target_score has no effect above 1, the best score that there can be"
    ]
    assert notices({}, {}, errors, CLASSES, search={"target_score": 0.8}, **weights) == [
        "notice: search.target_score has no effect above 0.75, the best score that there can be"
    ]
    assert not notices({}, {}, errors, CLASSES, search={"target_score": 0.7}, **weights)


def test_settings_of_another_scheduler_are_named_and_none_switches_any_off() -> None:
    assert notices({}, search={"exchange_epochs": 2}) == [
        "notice: search.exchange_epochs has no effect with the scheduler asha"
    ]
    assert not notices({}, search={"scheduler": "none", "exchange_epochs": 2, "grace_epochs": 3})
    assert not notices({}, search={"scheduler": "pbt", "grace_epochs": 1, "exchange_epochs": 2})


def test_scores_that_are_of_tokens_are_told_where_trials_have_others() -> None:
    def told(space: dict[str, Any], **task: Any) -> list[str]:
        tasks = {"answers": {"layout": "instructions", "train": "t.jsonl", **task}}
        study = {"study": "s", "backbone": "b", "tasks": tasks, "search_space": space}
        return incomparable_notices(StudyConfig.model_validate(study))

    backbones, lengths = {"backbone": choices("a", "b")}, {"target_max_len": choices(8, 16)}
    notice = "notice: scores of answers do not compare"
    assert told(backbones) == [
        f"{notice} across backbones of other tokens: set `metric: bits_per_character`, which does"
    ]
    [both] = told(backbones | lengths)
    assert both.count("do not compare") == 2
    assert told(lengths, metric="bits_per_character")[0].startswith(f"{notice} where target_max_len varies")
    assert not told({"backbone": choices("a")})
    assert not told(backbones, metric="bits_per_character")
    assert not told(backbones | lengths, metric="rouge_l")
