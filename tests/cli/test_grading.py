"""The files that ``--score`` names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from tutti.config.study import StudyConfig
from tutti.errors import SubmissionError
from tutti.tasks.task import Task
from tutti.workflows.grading import answers


def test_a_name_too_long_for_the_file_system_is_said_in_one_sentence() -> None:
    study = {
        "study": "moods",
        "backbone": "b",
        "tasks": {"mood": {"layout": "competition", "train": "/m", "test": "/t"}},
        "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-3}},
    }
    with pytest.raises(SubmissionError, match=r"must be TASK=FILE with a test file of the study \(mood\); got 'a+'"):
        answers(StudyConfig.model_validate(study), None, ["a" * 300 + "=b"])


def test_a_file_in_glue_s_spelling_is_read_by_the_glue_task_that_it_is(tmp_path: Path) -> None:
    (tmp_path / "labels.tsv").write_text("index\tprediction\n0\t1\n1\t0\n", encoding="utf8")
    own = {"layout": "glue", "glue": "MRPC", "train": "/m", "test": "/t"}
    study = StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"same": own}})
    task = Task("same", ("not_equivalent", "equivalent"), pair=True, metric="f1", submission="glue")
    rows = pd.DataFrame({"id": ["0", "1"], "text": ["a", "b"], "text_b": ["a", "c"]})
    prepared = SimpleNamespace(tasks=(task,), rows=lambda *_: rows, origins={"same": {}})
    read = answers(study, prepared, [str(tmp_path / "labels.tsv")])  # type: ignore[arg-type]
    assert read["same"]["test"].tolist() == [1, 0]


def test_graded_rows_that_are_training_rows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of extra_train are the test file's own rows where they are its pseudo-labels."""
    (tmp_path / "labels.csv").write_text("id,label\n0,no\n1,yes\n2,no\n", encoding="utf8")
    own = {"layout": "table", "train": "/m", "test": "/t"}
    study = StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"mood": own}})
    parts = {
        "test": pd.DataFrame({"id": ["0", "1", "2"], "text": ["a", "b", "c"]}),
        "train": pd.DataFrame({"id": ["0", "extra0/1"], "text": ["a", "b"]}),
        "validation": pd.DataFrame({"id": ["0"], "text": ["c"]}),
    }
    for validation, count in ({}, "2 of 3 rows"), ({"validation": {}}, "1 of 3 rows"):
        prepared = SimpleNamespace(
            tasks=(Task("mood", ("no", "yes"), pair=False, metric="accuracy", submission="csv"),),
            rows=lambda _, part: parts[part],
            origins={"mood": {"train": {}, **validation}},
        )
        answers(study, prepared, [str(tmp_path / "labels.csv")])  # type: ignore[arg-type]
        assert count in capsys.readouterr().out
