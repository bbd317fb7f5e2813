"""A key that would have no effect in any trial is refused."""

from __future__ import annotations

import pytest
from training_faults import training_faults


@pytest.mark.parametrize(
    ("training", "key"),
    [
        ({"lora_r": 8}, "training.lora_r"),
        ({"lora_r": 8, "adapter": None}, "training.lora_r"),
        ({"adapter": "lora", "bits": 8, "quant_type": "fp4"}, "training.quant_type"),
        ({"adversarial_start": 1}, "training.adversarial_start"),
        ({"stages": [{}, {"adversarial_start": 1}]}, "training.stages.1.adversarial_start"),
        ({"task_sampling": "uniform", "sampling_temperature": 3.0}, "training.sampling_temperature"),
        ({"dataloader_persistent_workers": True}, "training.dataloader_persistent_workers"),
        ({"activation_checkpointing_kwargs": {"every_n_layers": 2}}, "training.activation_checkpointing_kwargs"),
    ],
)
def test_a_key_that_no_trial_uses_is_refused(training: dict[str, object], key: str) -> None:
    (fault,) = training_faults(training)
    assert fault.startswith(f"study.yaml: {key} must be used with")


def test_a_key_whose_switch_is_on_in_a_stage_or_in_some_trials_stays() -> None:
    assert training_faults({"adversarial_start": 1, "stages": [{}, {"adversarial": "awp"}]}) == []
    space = {"adapter": {"type": "categorical", "choices": [None, "lora"]}}
    assert training_faults({"lora_r": 8}, space) == []


def test_a_batch_size_stays_where_a_stage_or_a_trial_has_no_token_budget() -> None:
    batch = {"per_device_train_batch_size": 8}
    (fault,) = training_faults({**batch, "max_tokens_per_batch": 512})
    assert fault.startswith("study.yaml: training.per_device_train_batch_size must be left out where every trial")
    assert not training_faults({**batch, "stages": [{"max_tokens_per_batch": 512}, {}]})
    space = {"per_device_train_batch_size": {"type": "categorical", "choices": [16, 32]}}
    (fault,) = training_faults({"max_tokens_per_batch": 512}, space)
    assert fault.startswith("study.yaml: search_space.per_device_train_batch_size must be left out where every trial")
    budgets = {"max_tokens_per_batch": {"type": "categorical", "choices": [None, 512]}}
    assert not training_faults({"max_tokens_per_batch": 512}, {**space, **budgets})
    stages = [{"max_tokens_per_batch": 512, **batch}, {}]
    (fault,) = training_faults({"stages": stages})
    assert fault.startswith("study.yaml: training.stages.0.per_device_train_batch_size")


def test_epochs_stay_where_a_stage_or_a_trial_does_not_count_steps() -> None:
    epochs = {"num_train_epochs": {"type": "int", "low": 2, "high": 6}}
    (fault,) = training_faults({"max_steps": 100}, epochs)
    assert fault.startswith(
        "study.yaml: search_space.num_train_epochs must be left out where every trial has max_steps"
    )
    (fault,) = training_faults({"num_train_epochs": 2, "stages": [{"max_steps": 9}, {"max_steps": 9}]})
    assert fault.startswith("study.yaml: training.num_train_epochs must be left out where every trial has max_steps")
    assert not training_faults({"max_steps": -1}, epochs)
    assert not training_faults({"num_train_epochs": 2, "stages": [{"max_steps": 9}, {}]})
    assert not training_faults({}, {**epochs, "max_steps": {"type": "categorical", "choices": [-1, 100]}})


def test_a_warm_up_stays_where_a_stage_or_a_trial_has_a_schedule_that_warms_up() -> None:
    schedule = {"lr_scheduler_type": "constant"}
    for key, value in {"warmup_steps": 0.03, "lr_scheduler_kwargs": {"num_cycles": 2}}.items():
        (fault,) = training_faults({key: value, **schedule})
        assert fault.startswith(
            f"study.yaml: training.{key} must be left out with the schedule constant, whose rate is"
        )
    (fault,) = training_faults(
        {"warmup_steps": 0.03}, {"lr_scheduler_type": {"type": "categorical", "choices": ["constant"]}}
    )
    assert fault.startswith("study.yaml: training.warmup_steps must be left out with the schedule constant")
    assert not training_faults({"warmup_steps": 0, **schedule})
    assert not training_faults({"warmup_steps": 0.03, "lr_scheduler_type": "constant_with_warmup"})
    assert not training_faults({"warmup_steps": 0.03, "stages": [schedule, {}]})


def test_a_former_name_is_refused_beside_the_present_one() -> None:
    former, present = {"gradient_checkpointing": False}, {"activation_checkpointing": True}
    space = {"activation_checkpointing": {"type": "categorical", "choices": [True]}}
    for training in ({**former, **present}, {**present, "stages": [former]}, {**former, "stages": [present, present]}):
        (fault,) = training_faults(training)
        assert fault.endswith(
            "its present name, which alone counts; got a value that no trial uses; take one of the two out."
        )
        assert "gradient_checkpointing must be left out beside activation_checkpointing" in fault
    assert len(training_faults(former, space)) == 1
    assert not training_faults(former)
    assert not training_faults({**former, "activation_checkpointing": None})


def test_a_former_name_stays_where_a_stage_or_a_trial_has_no_present_one() -> None:
    former, present = {"gradient_checkpointing": False}, {"activation_checkpointing": True}
    assert not training_faults({**former, "stages": [{}, present]})
    assert not training_faults({"stages": [former, present]})
    optim = {"optim": {"type": "categorical", "choices": ["adamw_torch", "sgd"]}}
    sometimes = {"activation_checkpointing": {"type": "categorical", "choices": [True], "when": {"optim": "sgd"}}}
    assert not training_faults(former, {**optim, **sometimes})
    varied = {"stages.0.gradient_checkpointing": {"type": "categorical", "choices": [True, False]}}
    assert not training_faults({"stages": [{}, present]}, varied)
    (fault,) = training_faults({"stages": [present]}, varied)
    assert "stages.0.gradient_checkpointing must be left out beside activation_checkpointing" in fault


def test_a_compiler_stays_where_a_trial_compiles() -> None:
    off, backend = {"torch_compile": False}, {"torch_compile_backend": "inductor"}
    (fault,) = training_faults({**off, **backend})
    assert fault.startswith("study.yaml: training.torch_compile_backend must be left out where `torch_compile: false`")
    assert not training_faults(backend)
    assert not training_faults(backend, {"torch_compile": {"type": "categorical", "choices": [False, True]}})


def test_activation_checkpointing_stays_where_a_stage_or_a_trial_trains_the_encoder() -> None:
    frozen, spared = {"freeze_encoder": True}, {"activation_checkpointing": True}
    for training in ({**frozen, **spared}, {**frozen, "stages": [{}, spared]}, {"stages": [{**frozen, **spared}, {}]}):
        (fault,) = training_faults(training)
        assert "activation_checkpointing must be left out where the encoder is frozen: no activation of" in fault
    assert not training_faults({**frozen, "activation_checkpointing": False})
    assert not training_faults({**spared, "stages": [{}, frozen]})
    assert not training_faults(spared, {"freeze_encoder": {"type": "categorical", "choices": [False, True]}})


def test_logging_steps_stay_where_a_stage_or_a_trial_logs_by_steps() -> None:
    steps, by_epoch = {"logging_steps": 5}, {"logging_strategy": "epoch"}
    (fault,) = training_faults({**steps, **by_epoch})
    assert fault.startswith("study.yaml: training.logging_steps must be left out with `logging_strategy: epoch`, which")
    assert not training_faults({**steps, "stages": [by_epoch, {}]})
    assert not training_faults(by_epoch)


def test_a_varied_key_stays_where_a_stage_has_no_value_of_its_own() -> None:
    rate, own = {"learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 1e-3}}, {"learning_rate": 1e-4}
    (fault,) = training_faults({"stages": [own, own]}, rate)
    assert fault.startswith(
        "study.yaml: search_space.learning_rate must be left to some stage: each has a value of its"
    )
    (fault,) = training_faults({"stages": [own, {}]}, {**rate, "stages.1.learning_rate": rate["learning_rate"]})
    assert fault.startswith("study.yaml: search_space.learning_rate must be left to some stage")
    assert not training_faults({"stages": [own, {}]}, rate)
    optim = {"optim": {"type": "categorical", "choices": ["adamw_torch", "sgd"]}}
    sometimes = {"stages.1.learning_rate": {**rate["learning_rate"], "when": {"optim": "sgd"}}}
    assert not training_faults({"stages": [own, {}]}, {**rate, **optim, **sometimes})
    assert not training_faults({"stages": [own, own], "learning_rate": 1e-3})  # a common value, which a stage overrides
    assert not training_faults(own, rate)
    weight = {"task_weights.mood": {"type": "uniform", "low": 0.5, "high": 2.0}}
    assert not training_faults({"stages": [{}, {"task_weights": {"mood": 2.0}}]}, weight)
    (fault,) = training_faults({"stages": [{"task_weights": {"mood": 2.0}}]}, weight)
    assert fault.startswith("study.yaml: search_space.task_weights.mood must be left to some stage")
    assert fault.endswith("; take task_weights out of a stage.")  # it varies in no single one


def test_a_varied_key_that_every_stage_sets_to_null_is_refused_in_a_new_study() -> None:
    decay, off = {"ema_decay": {"type": "categorical", "choices": [0.9, 0.99]}}, {"ema_decay": None}
    (fault,) = training_faults({"stages": [off, off]}, decay)
    assert fault.startswith("study.yaml: search_space.ema_decay must be left to some stage")
    assert not training_faults({"stages": [off, off]}, decay, begun=True)
    assert not training_faults({"stages": [off, {}]}, decay)
    pooling = {"pooling": {"type": "categorical", "choices": ["cls", "mean"]}}
    sometimes = {"stages.0.ema_decay": {**decay["ema_decay"], "when": {"pooling": "cls"}}}
    assert not training_faults({"stages": [{}]}, {**decay, **pooling, **sometimes})


def test_a_key_of_adam_stays_where_a_stage_or_a_trial_has_an_optimizer_that_reads_it() -> None:
    beta, betas = {"adam_beta2": 0.98}, {"adam_beta2": {"type": "uniform", "low": 0.9, "high": 0.99}}
    (fault,) = training_faults({**beta, "optim": "adafactor"})
    assert fault.startswith("study.yaml: training.adam_beta2 must be left out with adafactor, which does not read it;")
    (fault,) = training_faults({"optim": "sgd"}, betas)
    assert fault.startswith("study.yaml: search_space.adam_beta2 must be left out with sgd")
    (fault,) = training_faults({"stages": [{}, {"optim": "sgd", **beta}]})
    assert fault.startswith("study.yaml: training.stages.1.adam_beta2 must be left out with sgd")
    (fault,) = training_faults({**beta, "adam_epsilon": 1e-6, "optim": "paged_lion_8bit"})
    assert fault.startswith("study.yaml: training.adam_epsilon must be left out with paged_lion_8bit, which does not")
    assert not training_faults({**beta, "stages": [{"optim": "sgd"}, {}]})
    assert not training_faults(beta, {"optim": {"type": "categorical", "choices": ["sgd", "adamw_torch"]}})


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"swa_epochs": 3}, None),
        ({"swa_epochs": 4}, "training.swa_epochs must be at most num_train_epochs, 3; got 4"),
        ({"swa_epochs": 4, "max_steps": 100}, None),
        ({"swa_epochs": 2, "num_train_epochs": 1.5}, None),
        ({"swa_epochs": 1}, "training.swa_epochs must be 0 or at least 2"),
        ({"head_dropout_samples": 2, "head_dropout": 0.0}, "training.head_dropout must be above 0 with"),
        ({"head_dropout_samples": 2}, None),
        ({"loss_balancing": "dynamic", "num_train_epochs": 2}, "training.loss_balancing must be fixed or uncertainty"),
        ({"loss_balancing": "dynamic", "num_train_epochs": 2.5}, None),
        (
            {
                "loss_balancing": "dynamic",
                "num_train_epochs": 2,
                "stages": [{"max_steps": 99}, {"loss_balancing": "fixed"}],
            },
            None,
        ),
        ({"loss_balancing": "dynamic", "stages": [{}, {"num_train_epochs": 1}]}, None),
        (
            {"adversarial": "awp", "stages": [{}, {"num_train_epochs": 2, "adversarial_start": 2}]},
            "training.stages.1.adversarial_start must be below num_train_epochs, 2; got 2",
        ),
        ({"optim_target_modules": ["query"]}, "training.optim_target_modules must be left out without an optimizer"),
        ({"adapter": "lora", "stages": [{"freeze_encoder": True}, {}]}, None),
        ({"mixout": 0.1, "freeze_encoder": True}, "training.freeze_encoder must be false in one stage at least with"),
    ],
)
def test_a_trick_that_never_comes_into_play_is_a_fault(training: dict[str, object], expected: str | None) -> None:
    faults = training_faults(training)
    assert len(faults) == (expected is not None)
    assert expected is None or faults[0].startswith(f"study.yaml: {expected}")


def test_a_trick_that_comes_into_play_in_some_trials_is_none() -> None:
    space = {"num_train_epochs": {"type": "int", "low": 1, "high": 4}}
    assert not training_faults({"swa_epochs": 4}, space)
    assert len(training_faults({"swa_epochs": 5}, space)) == 1
