"""``--set KEY=VALUE`` changes a study file before it is checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tutti.config.load import load_study
from tutti.config.names import shipped_folder

Changed = Callable[..., Path]
Faults = Callable[..., list[str]]


def test_overrides_are_yaml_values_under_dotted_keys(changed: Changed) -> None:
    path = changed("  topic:", "  news.topic:")
    config = load_study(
        path,
        overrides=[
            "resources.workers=2",
            "training.bf16=true",
            "tasks.news.topic.metric=accuracy",
            "search_space=minute",
            "search_space.learning_rate.high=0.5",
        ],
    )
    assert config.resources.workers == 2
    assert config.training == {"num_train_epochs": 2, "bf16": True}
    assert config.tasks["news.topic"].metric == "accuracy"
    assert config.search_space.root["learning_rate"].high == 0.5  # type: ignore[union-attr]
    assert "head_dropout" in config.search_space.root


def test_an_override_reaches_the_entries_of_a_list_by_their_number(faults: Faults, changed: Changed) -> None:
    path = changed("training:\n", "training:\n  stages: [{learning_rate: 1.0e-3}, null]\n")
    overrides = ["training.stages.0.learning_rate=2e-5", "training.stages.1.freeze_encoder=true"]
    config = load_study(path, overrides=overrides)
    assert config.training["stages"] == [{"learning_rate": 2e-5}, {"freeze_encoder": True}]
    (fault,) = faults(path, overrides=["training.stages.2.learning_rate=2e-5"])
    assert fault.endswith("got a list of 2 at 'training.stages'; correct the key.")


def test_an_override_adds_and_changes_keys_of_a_search_space_that_contain_dots(changed: Changed) -> None:
    path = changed("training:\n", "training:\n  stages: [{bits: 4}, {}]\n")
    path = changed("  topic:", "  news.topic:", add="  stages.0.weight_decay: {type: uniform, low: 0, high: 0.1}\n")
    overrides = [
        "search_space.stages.0.weight_decay.high=0.2",
        "search_space.stages.1.learning_rate={type: log_uniform, low: 1e-5, high: 1e-4}",
        "search_space.stages.1.learning_rate.high=1e-3",
        "search_space.task_weights.news.topic.type=uniform",
        "search_space.task_weights.news.topic.low=0.5",
        "search_space.task_weights.news.topic.high=2",
        "search_space.head_dropout={type: uniform, low: 0, high: 0.1}",
        "search_space.head_dropout.when.stages.0.bits=4",
        "search.enqueue=[{learning_rate: 1e-4}]",
        "search.enqueue.0.stages.1.learning_rate=2e-5",
        "search.enqueue.0.stages.1.learning_rate=3e-5",
        "training.sampling_weights.news.topic=3",
    ]
    config = load_study(path, overrides=overrides)
    space: dict[str, Any] = config.search_space.root
    rate, weight = space["stages.1.learning_rate"], space["task_weights.news.topic"]
    assert space["stages.0.weight_decay"].high == 0.2
    assert (rate.low, rate.high) == (1e-5, 1e-3)
    assert (weight.low, weight.high) == (0.5, 2)
    assert space["head_dropout"].when == {"stages.0.bits": (4,)}
    assert config.search.enqueue == ({"learning_rate": 1e-4, "stages.1.learning_rate": 3e-5},)
    assert config.training["sampling_weights"] == {"news.topic": 3}
    removed = load_study(path, overrides=[*overrides[:3], "search_space.stages.1.learning_rate=null"])
    assert [*removed.search_space.root] == ["learning_rate", "stages.0.weight_decay"]


def test_a_key_of_a_shipped_search_space_that_does_not_fit_is_taken_out_as_the_message_says(
    faults: Faults, changed: Changed
) -> None:
    path = changed("\n  learning_rate: {type: log_uniform, low: 1e-5, high: 1e-3}", " small")
    path.write_text(f"{path.read_text()}search: {{scheduler: pbt, trials: 4}}\n")
    (fault,) = faults(path)
    assert "small.yaml: ema_decay.choices must have no null beside numbers with the scheduler pbt" in fault
    option = "search_space.ema_decay=null"
    assert fault.endswith(f"; `--set {option}` takes it out of the shipped search space.")
    assert "ema_decay" not in load_study(path, overrides=[option]).search_space.root
    path.with_name("own.yaml").write_text((shipped_folder("search_spaces") / "small.yaml").read_text())
    (fault,) = faults(path, overrides=["search_space=own.yaml"])
    assert fault.endswith("; take it out.")


def test_null_removes_a_key_so_that_its_default_applies(faults: Faults, changed: Changed) -> None:
    path = changed(add="  pooling: {type: categorical, choices: [cls, mean]}\nsearch: {trials: 3, seed: 5}\n")
    overrides = ["search_space.pooling=null", "training.num_train_epochs=null", "search.seed=null"]
    config = load_study(path, overrides=[*overrides, "search.patience=null"])  # the file does not have this one
    assert [*config.search_space.root] == ["learning_rate"]
    assert config.training == {}
    assert (config.search.seed, config.search.trials, config.search.patience) == (0, 3, None)
    (fault,) = faults(path, overrides=["backbone=null"])
    assert fault.startswith("--set backbone must be given; ")
    (fault,) = faults(path, overrides=["search_space.poling=null"])
    assert fault.startswith("--set search_space.poling must ")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "study.name=x",
            "--set study.name must name a key inside a mapping, or the number of a list's entry; got 'little' at "
            "'study'; correct the key.",
        ),
        ("=4", "--set =4 must be KEY=VALUE with a dotted key; "),
        ("search.trials=[1", "--set search.trials, line 1, column 3, must be YAML; "),
        (
            "search_space.stages.1.learning_rate.low=a",
            "--set search_space.stages.1.learning_rate.type must be given: ",
        ),
        ("training.day=.nan", "--set training.day must be a finite number; got nan; "),
    ],
)
def test_a_wrong_override_is_told_as_such(faults: Faults, study: Path, override: str, sentence: str) -> None:
    messages = faults(study, overrides=[override])
    assert [text[: len(sentence)] for text in messages] == [sentence]
