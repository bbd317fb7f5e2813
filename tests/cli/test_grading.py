"""The files that ``--score`` names."""

from __future__ import annotations

import pytest

from tutti.cli.grading import answers
from tutti.config.study import StudyConfig
from tutti.errors import SubmissionError


def test_a_name_too_long_for_the_file_system_is_said_in_one_sentence() -> None:
    study = {
        "study": "moods",
        "backbone": "b",
        "tasks": {"mood": {"layout": "competition", "train": "/m", "test": "/t"}},
        "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-3}},
    }
    with pytest.raises(SubmissionError, match=r"must be TASK=FILE with a test file of the study \(mood\); got 'a+'"):
        answers(StudyConfig.model_validate(study), None, ["a" * 300 + "=b"])
