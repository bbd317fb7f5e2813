"""A small valid study file, which tests change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tutti.config.load import load_study
from tutti.errors import ConfigError

STUDY = """\
study: little
backbone: backbone/
tasks:
  topic:
    layout: competition
    train: data/topic_train.csv
    test: data/topic_test.csv
training:
  num_train_epochs: 2
search_space:
  learning_rate: {type: log_uniform, low: 1e-5, high: 1e-3}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """The path of a study file that is valid, next to the files that it names."""
    for name in ("backbone", "data"):
        (tmp_path / name).mkdir()
    for name in ("topic_train.csv", "topic_test.csv"):
        (tmp_path / "data" / name).write_text("0\ttext\ta\n", encoding="utf-8")
    path = tmp_path / "study.yaml"
    path.write_text(STUDY, encoding="utf-8")
    return path


@pytest.fixture
def changed(study: Path) -> Callable[..., Path]:
    """The study file with one piece of text replaced by another, or with lines added at its end."""

    def change(old: str = "", new: str = "", *, add: str = "") -> Path:
        text = study.read_text(encoding="utf-8")
        assert old in text
        study.write_text(text.replace(old, new) + add, encoding="utf-8")
        return study

    return change


@pytest.fixture
def faults() -> Callable[..., list[str]]:
    """Loads an invalid study file, and returns the sentence of each fault."""

    def load(path: Path, **options: Any) -> list[str]:
        with pytest.raises(ConfigError) as raised:
            load_study(path, **options)
        return [str(fault) for fault in raised.value.faults]

    return load
