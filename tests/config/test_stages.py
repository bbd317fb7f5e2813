from __future__ import annotations

from tutti.config.stages import overlay, staged

TRAINING = {"learning_rate": 1e-5, "ema_decay": 0.999, "stages": [{"num_train_epochs": 6}, {"learning_rate": 1e-3}]}


def test_a_stages_keys_are_laid_over_all_others() -> None:
    assert staged(TRAINING) == (
        {"learning_rate": 1e-5, "ema_decay": 0.999, "num_train_epochs": 6},
        {"learning_rate": 1e-3, "ema_decay": 0.999},
    )


def test_without_stages_there_is_one() -> None:
    assert staged({"seed": 1}) == staged({"seed": 1, "stages": []}) == ({"seed": 1},)


def test_a_trials_parameters_reach_the_stage_they_name() -> None:
    laid = overlay(TRAINING, {"ema_decay": 0.99, "stages.1.learning_rate": 2e-3, "stages.0.weight_decay": 0.1})
    assert staged(laid) == (
        {"learning_rate": 1e-5, "ema_decay": 0.99, "num_train_epochs": 6, "weight_decay": 0.1},
        {"learning_rate": 2e-3, "ema_decay": 0.99},
    )
    assert TRAINING["stages"] == [{"num_train_epochs": 6}, {"learning_rate": 1e-3}]


def test_a_trials_weight_of_a_task_leaves_those_of_the_others() -> None:
    training = {"task_weights": {"a.b": 2.0, "c": 3.0}}
    assert overlay(training, {"task_weights.a.b": 0.5}) == {"task_weights": {"a.b": 0.5, "c": 3.0}}
    assert training == {"task_weights": {"a.b": 2.0, "c": 3.0}}
    assert overlay({}, {"sampling_weights.c": 1}) == {"sampling_weights": {"c": 1}}


def test_a_stage_of_heads_alone_has_its_own_rate_before_the_common_one_of_heads() -> None:
    training = {"head_learning_rate": 1e-3, "stages": [{}, {"freeze_encoder": True, "learning_rate": 1e-4}]}
    first, second = staged(training)
    assert first["head_learning_rate"] == 1e-3
    assert second == {"freeze_encoder": True, "learning_rate": 1e-4}
    own = {"freeze_encoder": True, "learning_rate": 1e-4, "head_learning_rate": 2e-3}
    assert staged({**training, "stages": [own]})[0]["head_learning_rate"] == 2e-3
    kept = staged({**training, "stages": [{"freeze_encoder": True}, {"learning_rate": 1e-4}]})
    assert [stage["head_learning_rate"] for stage in kept] == [1e-3, 1e-3]
