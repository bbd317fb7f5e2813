"""What a study file asks for and no trial would do is told; what may do something is let be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tutti.config.load import dump_study, load_study
from tutti.errors import ConfigError

Changed = Callable[..., Path]
LORA = "  lora_r: {type: int, low: 4, high: 16, when: {adapter: lora}}\n"
RATE = "search_space:\n  learning_rate: {type: log_uniform, low: 1e-5, high: 1e-3}\n"
SEEDS = "  seed: {type: categorical, choices: [1, 2]}\n"


def faults(path: Path, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load_study(path, **options)
    return [str(fault).removeprefix(f"{path}: ") for fault in raised.value.faults]


@pytest.mark.parametrize(
    ("distribution", "sentence"),
    [
        (
            "{type: uniform, low: 0, high: 0.1, step: 0.5}",
            "search_space.x.step must be at most high - low, 0.1, or every trial has the same value; got 0.5; lower ",
        ),
        (
            "{type: int, low: 1, high: 4, step: 4}",
            "search_space.x.step must be at most high - low, 3, or every trial has the same value; got 4; lower it, ",
        ),
        (
            "{type: categorical, choices: [mean, cls, mean]}",
            "search_space.x.choices.2 must be no choice that stands before it; got mean; take one of the two out.",
        ),
        (
            "{type: categorical, choices: [1, 1.0]}",
            "search_space.x.choices.1 must be no choice that stands before it; got 1.0; take one of the two out.",
        ),
        (
            "{type: categorical, choices: [1, 2], when: {}}",
            "search_space.x.when must name another key with its values; got an empty mapping; name one, or take ",
        ),
    ],
)
def test_each_kind_of_idle_distribution_has_its_sentence(changed: Changed, distribution: str, sentence: str) -> None:
    said = faults(changed(add=f"  x: {distribution}\n"))
    assert [text[: len(sentence)] for text in said] == [sentence]


@pytest.mark.parametrize(
    "distribution",
    [
        "{type: uniform, low: 0.2, high: 0.3, step: 0.1}",  # 0.09999999999999998 of floats
        "{type: int, low: 1, high: 4, step: 3}",
        "{type: int, low: 1, high: 2}",
        "{type: categorical, choices: [1, true, '1', 0, false, null]}",
    ],
)
def test_a_step_of_the_whole_range_and_choices_of_different_kinds_are_taken(
    changed: Changed, distribution: str
) -> None:
    assert "x" in load_study(changed(add=f"  x: {distribution}\n")).search_space.root


@pytest.mark.parametrize(
    ("training", "space", "sentence"),
    [
        (
            "adapter: null",
            LORA,
            "search_space.lora_r.when.adapter must be null, which training: sets adapter to in all trials; got lora; "
            "correct one of the two, or add adapter to the search space.",
        ),
        (
            "freeze_encoder: 1",
            "  seed: {type: categorical, choices: [1, 2], when: {freeze_encoder: [true, false]}}\n",
            "search_space.seed.when.freeze_encoder must be 1, which training: sets freeze_encoder to in all trials; "
            "got true or false; correct ",
        ),
        (  # what waits for the key that is never drawn is not told too
            "adapter: null",
            "  bits: {type: categorical, choices: [4, 8], when: {adapter: lora}}\n"
            "  seed: {type: categorical, choices: [1, 2], when: {bits: 4}}\n",
            "search_space.bits.when.adapter must be null, ",
        ),
        (
            "max_length: 64",
            "  pooling: {type: categorical, choices: [cls, mean]}\n"
            "  adapter: {type: categorical, choices: [lora], when: {pooling: cls}}\n"
            "  seed: {type: categorical, choices: [1, 2], when: {adapter: lora, pooling: mean}}\n",
            "search_space.seed.when must hold in some trial; got adapter: lora, pooling: mean, which none has; take ",
        ),
    ],
)
def test_a_condition_that_holds_in_no_trial_is_told(changed: Changed, training: str, space: str, sentence: str) -> None:
    said = faults(changed("training:\n", f"training:\n  {training}\n", add=space))
    assert [text[: len(sentence)] for text in said] == [sentence]


@pytest.mark.parametrize(
    ("training", "space"),
    [
        ("adapter: lora", LORA),
        ("adapter: null", f"  adapter: {{type: categorical, choices: [null, lora]}}\n{LORA}"),
        (  # where adapter is not drawn, it is what training: sets
            "adapter: lora",
            "  pooling: {type: categorical, choices: [cls, mean]}\n"
            "  adapter: {type: categorical, choices: [lora, null], when: {pooling: cls}}\n"
            "  lora_r: {type: int, low: 4, high: 16, when: {adapter: lora, pooling: mean}}\n",
        ),
    ],
)
def test_a_condition_that_holds_in_some_trial_is_taken(changed: Changed, training: str, space: str) -> None:
    path = changed("training:\n", f"training:\n  {training}\n", add=space)
    assert "lora_r" in load_study(path).search_space.root


def test_a_condition_on_a_key_that_is_not_sound_is_not_told_too(changed: Changed) -> None:
    path = changed(add=f"  adapter: {{type: categorical, choices: []}}\n{LORA}")
    assert [text.split(" must ")[0] for text in faults(path)] == ["search_space.adapter.choices"]


TWO = "num_train_epochs: 2"
STAGES = "stages: [{num_train_epochs: 2}, {num_train_epochs: 1.5}]"


@pytest.mark.parametrize(
    ("training", "added", "sentence"),
    [
        (
            TWO,
            "search: {grace_epochs: 2}",
            "search.grace_epochs must be over before the last evaluation of the 2 epochs of each trial, or asha never "
            "stops one; got 2; lower it, have more epochs, or name the scheduler none.",
        ),
        ("max_length: 64", "search: {grace_epochs: 3}", "search.grace_epochs must be over before the last evaluation "),
        (TWO, "search: {grace_epochs: 1.5, scheduler: median}", "search.grace_epochs must be over before the last "),
        (f"{TWO}\n  evals_per_epoch: 2", "search: {grace_epochs: 1.6}", "search.grace_epochs must be over before the"),
        (STAGES, "search: {grace_epochs: 4, scheduler: hyperband}", "search.grace_epochs must be over before the last"),
        (
            TWO,
            "search: {grace_epochs: 3}\nsplit: {folds: 3}",
            "search.grace_epochs must be over before the last evaluation of the 3 folds of each trial, or asha never "
            "stops one; got 3; lower it, have more folds, or name the scheduler none.",
        ),
        (
            TWO,
            "search: {exchange_epochs: 2, scheduler: pbt}",
            "search.exchange_epochs must be below the 2 epochs of each trial, or they never meet; got 2; lower it, or ",
        ),
    ],
)
def test_a_scheduler_that_has_nothing_to_say_is_told(
    changed: Changed, training: str, added: str, sentence: str
) -> None:
    said = faults(changed(TWO, training, add=f"{added}\n"))
    assert [text[: len(sentence)] for text in said] == [sentence]


@pytest.mark.parametrize(
    ("training", "added"),
    [
        (TWO, "search: {grace_epochs: 1.0}"),
        ("num_train_epochs: 1", "search: {grace_epochs: 1}"),  # the default, written out
        ("num_train_epochs: 1", "search: {scheduler: pbt}"),
        (f"{TWO}\n  evals_per_epoch: 2", "search: {grace_epochs: 1.5}"),
        (STAGES, "search: {grace_epochs: 3}"),
        (f"{TWO}\n  max_steps: 900", "search: {grace_epochs: 9}"),
        (TWO, "search: {grace_epochs: 2}\nsplit: {folds: 3}"),
        (TWO, "search: {grace_epochs: 9, scheduler: none}"),
        (TWO, "search: {grace_epochs: 9, exchange_epochs: 9, objectives: [score, disk]}"),
    ],
)
def test_a_scheduler_that_may_say_something_is_taken_and_so_is_what_none_looks_at(
    changed: Changed, training: str, added: str
) -> None:
    load_study(changed(TWO, training, add=f"{added}\n"))


@pytest.mark.parametrize("key", ["num_train_epochs", "max_steps", "stages.0.num_train_epochs"])
def test_a_scheduler_of_trials_that_the_search_space_makes_longer_is_taken(changed: Changed, key: str) -> None:
    space = f"  {key}: {{type: int, low: 1, high: 9}}\n"
    load_study(changed(TWO, "stages: [{num_train_epochs: 2}]", add=f"{space}search: {{grace_epochs: 8}}\n"))


def test_more_known_points_than_trials_are_told(changed: Changed) -> None:
    points = ", ".join(f"{{learning_rate: {rate}e-4}}" for rate in (1, 2, 3))
    path = changed(add=f"search: {{trials: 2, enqueue: [{points}]}}\n")
    assert faults(path) == [
        "search.enqueue must hold no more points than search.trials, 2: each is a trial; got 3 points; raise "
        "search.trials, or take some out."
    ]
    assert len(load_study(path, overrides=["search.trials=3"]).search.enqueue) == 3


def test_a_study_with_every_default_written_out_is_a_study_file_again(changed: Changed, tmp_path: Path) -> None:
    space = f"{SEEDS}  x: {{type: uniform, low: 0, high: 1}}\n"
    config = load_study(changed(TWO, "num_train_epochs: 1", add=space))
    (tmp_path / "again.json").write_text(dump_study(config), encoding="utf-8")
    assert load_study(tmp_path / "again.json") == config
