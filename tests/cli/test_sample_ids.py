"""A sample submission whose ids are a column of the test table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tutti.config.recipe import Recipe
from tutti.config.study import StudyConfig
from tutti.data.prepare import prepare
from tutti.errors import SubmissionError
from tutti.tasks.build import task_specs
from tutti.workflows.vote import formats_of

ORDER = [2, 0, 1]


def check(folder: Path, *, header: str, test: str, columns: dict[str, str] | None = None) -> None:
    """Prepares a study on a test table and makes the formats of a recipe whose sample has the ids 0, 1 and 2."""
    (folder / "train.csv").write_text("text,label\n" + "".join(f"t{row},{row % 2}\n" for row in range(20)))
    (folder / "test.csv").write_text(test)
    (folder / "sample.csv").write_text(f"{header},label\n0,0\n1,0\n2,0\n")
    task: dict[str, Any] = {
        "layout": "table",
        "train": str(folder / "train.csv"),
        "test": str(folder / "test.csv"),
        "columns": columns or {},
    }
    space = {"learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-3}}
    config = StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"t": task}, "search_space": space})
    prepared = prepare(task_specs(config.tasks), validation=0.5, seed=0, folder=folder / "data")
    recipe = Recipe.model_validate({"submission": {"templates": {"t": folder / "sample.csv"}}})
    formats_of(config, prepared, recipe).check({"t": {"test": prepared.ids("t", "test")}}, prepared.tasks)


def table(*names: str, **values: list[Any]) -> str:
    rows = zip(*(values[name] for name in names), strict=True)
    return "\n".join([",".join([*names, "text"]), *(",".join([*map(str, row), "a"]) for row in rows)]) + "\n"


def test_it_is_followed_where_the_study_has_taken_the_ids_from_that_column(tmp_path):
    check(tmp_path, header="Id", test=table("Id", Id=ORDER))


def test_it_is_refused_where_the_study_has_numbered_the_rows(tmp_path):
    message = (
        r"sample.csv must name the column that the study has taken the ids of .*test.csv from; got 'key', another one; "
        r"set `columns: {id: key}` for the task t, and tune it as a new study"
    )
    with pytest.raises(SubmissionError, match=message):
        check(tmp_path, header="key", test=table("key", key=ORDER))


def test_it_is_refused_where_the_study_has_taken_another_column(tmp_path):
    with pytest.raises(SubmissionError, match="got 'essay_id', another one"):
        check(tmp_path, header="essay_id", test=table("id", "essay_id", id=[0, 1, 2], essay_id=ORDER))


def test_it_is_followed_where_both_give_the_same_ids(tmp_path):
    check(tmp_path, header="key", test=table("key", key=[0, 1, 2]))


def test_ids_that_the_study_file_names_go_before_a_column_of_other_values_that_has_the_sample_s_name(tmp_path):
    test = table("row", "id", row=ORDER, id=["x", "y", "z"])
    check(tmp_path, header="id", test=test, columns={"id": "row"})
