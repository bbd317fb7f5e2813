"""A distribution that leaves a trial no choice is told; what may do something is let be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tutti.config.load import dump_study, load_study
from tutti.errors import ConfigError

Changed = Callable[..., Path]
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


def test_a_study_with_every_default_written_out_is_a_study_file_again(changed: Changed, tmp_path: Path) -> None:
    space = f"{SEEDS}  x: {{type: uniform, low: 0, high: 1}}\n"
    config = load_study(changed("num_train_epochs: 2", "num_train_epochs: 1", add=space))
    (tmp_path / "again.json").write_text(dump_study(config), encoding="utf-8")
    assert load_study(tmp_path / "again.json") == config
