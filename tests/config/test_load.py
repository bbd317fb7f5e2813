"""A valid study file is read completely, with the search space that it names, and is stored with its study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tutti.config.load import dump_study, load_study, parse_study
from tutti.errors import ConfigError, Fault

Changed = Callable[..., Path]
Faults = Callable[..., list[str]]


def test_a_sound_study_comes_out_with_every_path_absolute(study: Path) -> None:
    config = load_study(study)
    assert config.backbone == str(study.parent / "backbone")
    assert config.tasks["topic"].train == str(study.parent / "data" / "topic_train.csv")
    assert config.training == {"num_train_epochs": 2}
    assert config.search_space.root["learning_rate"].low == 1e-5  # type: ignore[union-attr]


def test_a_relative_path_of_the_study_file_itself_is_understood(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parent)
    assert load_study(Path("study.yaml")) == load_study(study)


def test_a_search_space_is_taken_from_a_shipped_name_or_a_file(changed: Changed, tmp_path: Path) -> None:
    inline = "search_space:\n  learning_rate: {type: log_uniform, low: 1e-5, high: 1e-3}\n"
    path = changed(inline, "search_space: small\n")
    assert "learning_rate" in load_study(path).search_space.root
    (tmp_path / "mine.yaml").write_text("weight_decay: {type: uniform, low: 0, high: 0.1}\n", encoding="utf-8")
    changed("search_space: small", "search_space: mine.yaml")
    assert list(load_study(path).search_space.root) == ["weight_decay"]


def test_a_wrong_search_space_is_told_by_its_own_file(faults: Faults, changed: Changed, tmp_path: Path) -> None:
    inline = "search_space:\n  learning_rate: {type: log_uniform, low: 1e-5, high: 1e-3}\n"
    path = changed(inline, "search_space: smal\n")
    rule = (
        "search_space must be one of base_large, decoder_qlora, lora, minute, qlora, small, or the path of a YAML file"
    )
    assert f"{rule}; got 'smal'; did you mean" in faults(path)[0]
    (tmp_path / "mine.yaml").write_text("weight_decay: {type: uniform, low: x, high: 0.1}\n", encoding="utf-8")
    changed("search_space: smal", "search_space: ./mine.yaml")
    assert faults(path) == [
        f"{tmp_path}/mine.yaml: weight_decay.low must be a number; got 'x'; give a number, such as 0.1."
    ]


def test_the_training_check_gets_what_is_sound_and_its_faults_are_joined(faults: Faults, changed: Changed) -> None:
    seen: dict[str, Any] = {}

    def check(training: Mapping[str, Any], space: Mapping[str, Any], file: str) -> list[Fault]:
        seen.update(training=dict(training), space=sorted(space))
        return [
            Fault(f"{file}: training.{key}", "be a known key", "an unknown one", "correct it")
            for key in training
            if key != "num_train_epochs"
        ]

    path = changed(add="  bad: {type: int}\nsearch: {trials: 0}\n")
    messages = faults(path, overrides=["training.nope=1"], check_training=check)
    assert seen == {"training": {"num_train_epochs": 2, "nope": 1}, "space": ["learning_rate"]}
    assert "--set training.nope must be a known key; got an unknown one; correct it." in messages
    assert len(messages) == 4  # low and high of bad, trials, nope


def test_a_stored_study_comes_back_as_it_was(study: Path) -> None:
    config = load_study(study, overrides=["search_space=small", "training.pooling=null"])
    study.with_suffix(".json").write_text(dump_study(config), encoding="utf-8")
    assert parse_study(study.with_suffix(".json")) == parse_study(dump_study(config)) == config


@pytest.mark.parametrize("text", ["", "{", "[]", '{"study": "a"}'])
def test_a_stored_study_that_was_spoilt_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "study.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"study\.json.* must .*restore the file, or run the study under a new name"):
        parse_study(tmp_path / "study.json")
    with pytest.raises(ConfigError, match="no such file"):
        parse_study(tmp_path / "none.json")


def test_a_study_has_no_task_of_the_name_of_the_optimizer_steps_metrics(faults, changed, tmp_path):
    path = changed("  topic:", "  Train:", add=f"storage: {{path: {tmp_path}}}\n")
    (message,) = faults(path)
    assert "tasks must have no task 'train', as MLflow names the optimizer steps; got 'Train'" in message
