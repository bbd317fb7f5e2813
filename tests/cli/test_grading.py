"""The files that ``--score`` names."""

from __future__ import annotations

import pytest

from tutti.cli.grading import answers
from tutti.config.study import StudyConfig
from tutti.errors import StorageError


def test_a_name_too_long_for_the_file_system_is_said_in_one_sentence() -> None:
    study = {
        "study": "moods",
        "backbone": "b",
        "tasks": {"mood": {"layout": "competition", "train": "/m", "test": "/t"}},
        "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-3}},
    }
    with pytest.raises(StorageError, match="File name too long"):
        answers(StudyConfig.model_validate(study), None, ["a" * 300 + "=b"])
