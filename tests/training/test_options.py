from __future__ import annotations

import dataclasses

import pytest
from training_faults import training_faults
from transformers import TrainingArguments

from tutti.errors import TrialError
from tutti.training.keys import packages
from tutti.training.keys.options import DEFAULTS, FIXED, split_training
from tutti.training.keys.reserved_keys import SET_BY_TUTTI


def _space_faults(space: dict[str, object]) -> list[str]:
    return training_faults({}, space)


def test_what_users_usually_write_passes() -> None:
    assert not training_faults(
        {"learning_rate": 3e-5, "num_train_epochs": 2, "bf16": True, "pooling": "cls", "ema_decay": None}
        | {"lr_scheduler_type": "cosine", "optim": "adamw_torch", "warmup_steps": 0.06, "max_grad_norm": 1}
    )


def test_our_defaults_and_fixed_values_are_fields_of_training_arguments() -> None:
    fields = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    assert set(DEFAULTS) | set(FIXED) <= fields
    assert set(FIXED) <= set(SET_BY_TUTTI)
    assert not set(DEFAULTS) & set(SET_BY_TUTTI)
    assert set(SET_BY_TUTTI) - fields == {"logging_dir", "evaluation_strategy", "evaluate_during_training"}


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("learning_rate", "5e-5", "be a number"),
        ("learning_rate", 0, "be above 0"),
        ("learning_rate", float("nan"), "be a finite number"),
        ("per_device_train_batch_size", 16.0, "be a whole number"),
        ("per_device_train_batch_size", 0, "be at least 1"),
        ("label_smoothing_factor", 1.0, "be below 1"),
        ("seed", -1, "be at least 0"),
        ("neftune_noise_alpha", -3.0, "be at least 0"),
        ("logging_steps", 0, "be above 0"),
        ("bf16", "yes", "be true or false"),
        ("pooling", "max", "be 'attention', 'cls', 'pooler', 'last', 'mean', 'pair' or 'bi_encoder'"),
        ("ema_decay", 1.0, "be below 1"),
        ("lr_scheduler_type", "cosin", "be one of linear, cosine"),
        ("adversarial", "pgd", "be 'fgm' or 'awp'"),
        ("layer_lr_decay", 1.1, "be at most 1"),
        ("bits", 16, "be 4 or 8"),
        ("task_weights", {"news": 0.0}, "be above 0"),
        ("stages", {"num_train_epochs": 2}, "be a list"),
        ("attn_implementation", "spda", "be one of eager, flash_attention_2"),
        ("torch_compile_mode", "max-autotuned", "be one of default, lite, max-autotune,"),
        ("max_steps", 0, "be at least 1, or -1"),
        ("logging_strategy", "no", "be one of steps, epoch"),
        ("rdrop_alpha", float("inf"), "be a finite number"),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(key: str, value: object, rule: str) -> None:
    (fault,) = training_faults({key: value})
    assert fault.startswith(f"study.yaml: training.{key} must {rule}")
    assert f"got {value!r};" in fault


def test_a_combination_that_cannot_be_is_a_fault() -> None:
    (fault,) = training_faults({"bf16": True, "fp16": True})
    assert "At most one of fp16 and bf16" in fault


@pytest.mark.parametrize(
    ("training", "rule"),
    [
        ({"swa_epochs": 2, "ema_decay": 0.99}, "have one of swa_epochs and ema_decay"),
        ({"bits": 4}, "have an adapter where bits is set"),
        ({"adversarial": "fgm", "freeze_encoder": True}, "have no `adversarial: fgm`"),
        ({"task_sampling": "weights"}, "have sampling_weights"),
        ({"optim": "adagrad", "layer_lr_decay": 0.9}, "have none of layer_lr_decay, head_learning_rate and"),
        ({"optim": "adagrad", "head_learning_rate": 1e-3}, "have none of layer_lr_decay, head_learning_rate and"),
        ({"adversarial": "awp", "gradient_accumulation_steps": 2}, "have gradient_accumulation_steps 1 with"),
        (
            {"optim": "schedule_free_adamw", "swa_epochs": 2},
            "have neither ema_decay nor swa_epochs with a schedule-free",
        ),
        ({"stages": [{"ema_decay": 0.9}, {"swa_epochs": 2}], "swa_epochs": 2}, "have one of swa_epochs and ema_decay"),
    ],
)
def test_switches_that_do_not_go_together_are_a_fault(training, rule, monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: name)  # schedulefree is not installed everywhere
    (fault,) = training_faults(training)
    assert f"must {rule}" in fault


def test_a_search_space_varies_weights_of_single_tasks() -> None:
    weight: dict[str, object] = {"type": "log_uniform", "low": 0.5, "high": 2}
    assert not _space_faults({"task_weights.a.b": weight})
    choices: dict[str, object] = {"type": "categorical", "choices": [1, 2]}
    assert not training_faults({"task_sampling": "weights"}, {"sampling_weights.lora_r": choices})
    for wrong in ({"type": "uniform", "low": 0.0, "high": 1.0}, {"type": "categorical", "choices": [0.0, 1.0]}):
        (fault,) = _space_faults({"task_weights.a": wrong})
        assert "must be above 0; got 0.0;" in fault


@pytest.mark.parametrize("key", ["task_weights", "stages.0.task_weights", "stages.0.sampling_weights.a"])
def test_a_search_space_varies_no_weights_of_all_tasks_at_once_or_of_one_stage(key: str) -> None:
    faults = training_faults(
        {"stages": [{}], "task_sampling": "weights"}, {key: {"type": "uniform", "low": 1, "high": 2}}
    )
    assert len(faults) == 1
    assert f"search_space.{key} must vary the weight of one task, in all stages" in faults[0]


@pytest.mark.parametrize("order", [[0.999, None], [None, 0.999]])
def test_a_search_space_passes_where_some_of_its_trials_can_run(order: list[float | None]) -> None:
    space: dict[str, object] = {
        "ema_decay": {"type": "categorical", "choices": order},
        "swa_epochs": {"type": "categorical", "choices": [2, 0]},
    }
    assert not _space_faults(space)
    (fault,) = _space_faults(
        {**space, "ema_decay": {"type": "categorical", "choices": [0.9, 0.99]}}
        | {"swa_epochs": {"type": "int", "low": 1, "high": 2}}
    )
    assert "must have one of swa_epochs and ema_decay" in fault


def test_what_a_search_space_chose_and_does_not_go_together_ends_the_trial() -> None:
    with pytest.raises(TrialError, match=r"swa_epochs=2.*narrow the search space"):
        split_training({"ema_decay": 0.9, "swa_epochs": 2})


def test_every_combination_that_does_not_go_together_is_a_fault_of_its_own() -> None:
    keys = {"swa_epochs": 2, "ema_decay": 0.9, "adversarial": "awp", "gradient_accumulation_steps": 2, "fsdp": True}
    keys |= {"optim": "adafactor"}
    rules = ["one of swa_epochs and ema_decay", "gradient_accumulation_steps 1", "one of the optimizers"]
    with pytest.raises(TrialError) as raised:
        split_training(keys)
    for messages in (raised.value.faults, training_faults(keys)):
        assert [rule in str(message) for rule, message in zip(rules, messages, strict=True)] == [True] * 3


def test_keys_of_a_stage_are_checked_like_all_others() -> None:
    stages = [{"learning_rate": 0, "ema_dekay": 0.9}, {"pooling": "cls"}]
    assert [
        fault.split("; got")[0].removeprefix("study.yaml: training.stages.")
        for fault in training_faults({"stages": stages})
    ] == [
        "0.learning_rate must be above 0",
        "0.ema_dekay must be an option of Tutti or a field of transformers.TrainingArguments",
        "1.pooling must not differ from stage to stage",
    ]


def test_a_search_space_varies_a_key_of_a_stage() -> None:
    def faults(key: str) -> list[str]:
        space: dict[str, object] = {key: {"type": "log_uniform", "low": 1e-4, "high": 1}}
        return training_faults({"stages": [{}, {"freeze_encoder": True}]}, space)

    assert not faults("stages.1.learning_rate")
    rule = "search_space.stages.2.learning_rate must name a key of one of the 2 stages"
    assert rule in faults("stages.2.learning_rate")[0]
    assert "did you mean 'learning_rate'?" in faults("stages.1.learning_rat")[0]


def test_all_faults_are_reported_at_once() -> None:
    faults = training_faults({"learning_rte": 1, "pooling": "max", "report_to": "all", "seed": -1})
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


def test_how_often_trials_are_evaluated_varies_neither_between_them_nor_between_stages() -> None:
    (fault,) = _space_faults({"evals_per_epoch": {"type": "int", "low": 1, "high": 4}})
    assert fault.startswith("study.yaml: search_space.evals_per_epoch must not vary")
    (fault,) = training_faults({"stages": [{"evals_per_epoch": 2}]})
    assert "stages.0.evals_per_epoch must not differ from stage to stage" in fault
    (fault,) = _space_faults({"best_by": {"type": "categorical", "choices": ["score", "loss"]}})
    assert fault.startswith("study.yaml: search_space.best_by must not vary")


@pytest.mark.parametrize("kind", ["uniform", "log_uniform"])
@pytest.mark.parametrize("key", ["max_length", "per_device_train_batch_size", "seed", "max_steps", "state_steps"])
def test_a_distribution_of_floats_does_not_fit_a_key_of_whole_numbers(key: str, kind: str) -> None:
    (fault,) = _space_faults({key: {"type": kind, "low": 16, "high": 64}})
    assert fault.startswith(
        f"study.yaml: search_space.{key}.type must be int or categorical for a key of whole numbers"
    )
    assert "write `type: int`" in fault
    assert not _space_faults({key: {"type": "int", "low": 16, "high": 64}})


def test_the_users_values_lie_over_our_defaults() -> None:
    options, arguments = split_training({"pooling": "mean", "learning_rate": 1e-3, "adam_beta2": 0.98})
    assert options.pooling == "mean"
    assert arguments == {**DEFAULTS, "learning_rate": 1e-3, "adam_beta2": 0.98}


def test_settings_of_activation_checkpointing_are_those_that_it_takes() -> None:
    for on in ("activation_checkpointing", "gradient_checkpointing"):
        for settings in ({"every_n_layers": 2}, {"use_reentrant": False, "preserve_rng_state": True}, {}):
            assert not training_faults({on: True, f"{on}_kwargs": settings})
        assert split_training({f"{on}_kwargs": {"preserve_rng_state": True}})[1][f"{on}_kwargs"] == {
            "use_reentrant": False,
            "preserve_rng_state": True,
        }
        for others in ({"foo": 1}, {"use_reentrant": True}, {"preserve_rng_state": False, "every_n_layers": 2}):
            (fault,) = training_faults({on: True, f"{on}_kwargs": others})
            assert f"{on}_kwargs must hold every_n_layers alone" in fault


@pytest.mark.parametrize("key", ["log_level", "debug", "dataloader_multiprocessing_context", "dataloader_in_order"])
def test_what_a_trial_would_pass_over_is_set_by_tutti(key: str) -> None:
    (fault,) = training_faults({key: "nonsense"})
    assert f"training.{key} must not be set" in fault


def test_a_key_is_put_together_only_with_those_that_it_is_drawn_with() -> None:
    space = {"adapter": {"type": "categorical", "choices": [None]}, "bits": {"type": "categorical", "choices": [4]}}
    assert len(_space_faults(space)) == 1
    space["bits"] |= {"when": {"adapter": "lora"}}
    assert not _space_faults(space)


def test_one_trial_that_can_run_is_enough_however_many_before_it_cannot() -> None:
    space = {
        "adapter": {"type": "categorical", "choices": [None, "lora"]},
        "learning_rate": {"type": "categorical", "choices": [1e-6 * (number + 1) for number in range(256)]},
        "weight_decay": {"type": "uniform", "low": 0, "high": 0.1},
        "bits": {"type": "categorical", "choices": [4]},
    }
    assert not _space_faults(space)
    space["adapter"] = {"type": "categorical", "choices": [None]}
    assert len(_space_faults(space)) == 1


@pytest.mark.parametrize(
    ("training", "got"),
    [
        ({"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 1}}, None),
        ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"powr": 2}}, "'powr'"),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "num_decay_steps"),
        ({"lr_scheduler_type": "greedy", "lr_scheduler_kwargs": {"patience": 1, "smooth": True}}, None),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"factor": 2}}, "Factor should be < 1.0"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"mode": "min"}}, "'min'; take it out"),
        ({"optim": "sgd", "optim_args": "momentum=0.9, nesterov=true"}, None),
        ({"optim": "sgd", "optim_args": "momentum=0.9,nestrov=true"}, "'nestrov=true', which changes nothing"),
        ({"optim": "sgd", "optim_args": "momentum=high"}, "could not convert"),
        ({"optim": "sgd", "optim_args": "nesterov=true"}, "Nesterov momentum requires a momentum"),
    ],
)
def test_schedule_and_optimizer_are_built_once_before_any_trial(training: dict[str, object], got: str | None) -> None:
    faults = training_faults(training)
    assert len(faults) == (got is not None)
    assert got is None or got in faults[0]


@pytest.mark.parametrize(
    ("name", "key"),
    [("lr", "learning_rate"), ("EMA", "ema_decay"), ("batch-size", "per_device_train_batch_size"), ("epochs", None)],
)
def test_a_key_by_the_name_that_it_has_elsewhere_is_recognised(name: str, key: str | None) -> None:
    (fault,) = training_faults({name: 1})
    assert f"did you mean {key or 'num_train_epochs'!r}?" in fault


def test_names_from_elsewhere_are_no_keys_and_what_they_mean_is_one() -> None:
    from tutti.config.training import TrainingOptions
    from tutti.training.keys.key_aliases import ALIASES

    fields = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    known = fields | set(TrainingOptions.model_fields)
    assert not set(ALIASES) & known
    assert set(ALIASES.values()) <= known - set(SET_BY_TUTTI)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"fsdp_config": {"reshard_after_forward": False, "transformer_layer_cls_to_wrap": ["BertLayer"]}}, None),
        ({"adapter": "lora", "ema_decay": 0.9, "bf16": True, "stages": [{}, {"freeze_encoder": True}]}, None),
        ({"fsdp_config": {"version": 1}}, "training.fsdp_config.version must be 2; got 1"),
        ({"fsdp_config": {"state_dict_type": "FULL"}}, "training.fsdp_config.state_dict_type must be one of"),
        ({"fsdp_config": "fsdp.json"}, "training.fsdp_config must be a mapping; got 'fsdp.json'"),
        ({"stages": [{}, {"fsdp": False}]}, "training.stages.1.fsdp must not differ from stage to stage"),
        ({"loss_balancing": "uncertainty"}, "training must have no `loss_balancing: uncertainty` with fsdp"),
        ({"torch_compile": True}, "training must have no torch_compile with fsdp"),
        ({"torch_compile_mode": "default"}, "training must have no torch_compile with fsdp"),
        ({"optim": "adagrad"}, "training must have one of the optimizers adamw_torch, adamw_torch_fused"),
    ],
)
def test_what_does_not_go_with_sharded_weights_is_a_fault(training: dict[str, object], expected: str | None) -> None:
    faults = training_faults({"fsdp": True, **training})
    assert len(faults) == (expected is not None)
    assert expected is None or faults[0].startswith(f"study.yaml: {expected}")


@pytest.mark.parametrize(
    ("switch", "compiles"), [({}, True), ({"torch_compile": True}, True), ({"torch_compile": False}, False)]
)
def test_a_trial_that_switches_compilation_off_trains_without_it(switch: dict[str, bool], compiles: bool) -> None:
    _, arguments = split_training({**switch, "torch_compile_backend": "inductor", "torch_compile_mode": "default"})
    assert TrainingArguments(**arguments, use_cpu=True).torch_compile is compiles


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("adafactor", "optim"),
        ("adam8bit", "optim"),
        ("full_finetune", "adapter"),
        ("lora_modules", "lora_targets"),
        ("bnb_4bit_use_double_quant", "double_quant"),
        ("source_max_len", "max_length"),
        ("no_cuda", "use_cpu"),
    ],
)
def test_a_name_of_the_qlora_script_or_of_an_older_trainer_leads_to_its_key(name: str, key: str) -> None:
    (fault,) = _space_faults({name: {"type": "categorical", "choices": [True]}})
    assert f"did you mean '{key}'?" in fault
