"""Folds in a study file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tutti.config.load import dump_study, load_study, parse_study

Changed = Callable[..., Path]
Faults = Callable[..., list[str]]
RULE = "must be left out with split.folds, by which every training row validates once"


def test_without_folds_a_tenth_is_held_out_and_with_them_nothing_is(changed: Changed) -> None:
    assert load_study(changed()).split.model_dump(exclude_none=True) == {"validation": 0.1, "seed": 0}
    folded = load_study(changed(add="split: {folds: 5, seed: 3}\n"))
    assert folded.split.model_dump(exclude_none=True) == {"folds": 5, "seed": 3}


def test_a_fold_column_takes_the_place_of_folds(faults: Faults, changed: Changed) -> None:
    told = "\n".join(
        faults(
            changed(),
            overrides=[
                "split.fold_column=part",
                "split.validation=0.1",
                "search.scheduler=pbt",
                "tasks.topic.layout=table",
            ],
        )
    )
    assert "split.validation must be left out with split.fold_column" in told
    assert "split.fold_column must be left out with the scheduler pbt" in told


def test_groups_are_a_column_of_all_tasks_or_of_some(faults: Faults, changed: Changed) -> None:
    path = changed()
    assert load_study(path, overrides=["split.group=text"]).split.group_of("topic") == "text"
    assert load_study(path, overrides=["split.group.topic=text"]).split.group_of("mood") is None
    message = "must be a text; got a list; write one text in its place."
    assert message in faults(path, overrides=["split.group=[text]"])[0]


def test_a_study_with_folds_is_stored_and_comes_back(changed: Changed, tmp_path: Path) -> None:
    config = load_study(changed(add="split: {folds: 5}\n"))
    assert parse_study(dump_study(config)) == config
    stored = tmp_path / "stored.json"  # JSON is valid YAML, and is what a submitted job reads
    stored.write_text(dump_study(config), encoding="utf-8")
    assert load_study(stored) == config


def test_a_share_beside_folds_is_a_fault_whichever_gave_it(faults: Faults, changed: Changed) -> None:
    path = changed(add="split: {folds: 5, validation: 0.1}\n")
    assert faults(path) == [f"{path}: split.validation {RULE}; got 0.1; take it out, or take split.folds out."]
    path = changed("validation: 0.1", "seed: 0")
    assert faults(path, overrides=["split.validation=0.2"])[0].startswith(f"--set split.validation {RULE}; got 0.2")


def test_validation_files_beside_folds_are_faults_told_with_all_others(faults: Faults, changed: Changed) -> None:
    path = changed(
        "    test:", "    validation: data/topic_test.csv\n    test:", add="split: {folds: 5}\nsearch: {trials: 0}\n"
    )
    messages = faults(path)
    assert sorted(messages)[0].startswith(f"{path}: search.trials must be at least 1")
    assert sorted(messages)[1].startswith(
        f"{path}: tasks.topic.validation {RULE}; got '{path.parent}/data/topic_test.csv'"
    )
    assert len(messages) == 2


@pytest.mark.parametrize(
    ("folds", "sentence"),
    [
        ("1", "must be at least 2; got 1; change the number."),
        ("many", "must be a whole number; got 'many'; give a whole number, such as 4."),
    ],
)
def test_folds_are_two_or_more(faults: Faults, changed: Changed, folds: str, sentence: str) -> None:
    path = changed(add=f"split: {{folds: {folds}}}\n")
    assert faults(path) == [f"{path}: split.folds {sentence}"]
