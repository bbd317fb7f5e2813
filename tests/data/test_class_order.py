"""The order of classes, and what is read of tables of several labels and of validation rows."""

from __future__ import annotations

import pytest

from tutti.config.study import TaskConfig
from tutti.data.prepare import prepare
from tutti.errors import ConfigError
from tutti.tasks.build import task_specs

GRADES = ["low", "medium", "high"]


def prepared(folder, rows, **keys):
    columns = [*rows]
    lines = [",".join(map(str, row)) for row in zip(*rows.values(), strict=True)]
    (folder / "train.csv").write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf8")
    task = TaskConfig(layout="table", train=str(folder / "train.csv"), **keys)
    share = None if "validation" in keys else 0.2
    return prepare(task_specs({"t": task}), validation=share, seed=0, folder=folder / "data")


def graded(names, count=30):
    return {"text": [f"text {n}" for n in range(count)], "label": [names[n % len(names)] for n in range(count)]}


def test_grades_that_are_words_have_the_order_that_the_study_file_lists(tmp_path):
    study = prepared(tmp_path, graded(GRADES), ordered=GRADES, metric="quadratic_kappa")
    assert study.tasks[0].names == ("low", "medium", "high")


def test_grades_that_are_words_need_their_order(tmp_path):
    with pytest.raises(ConfigError, match=r"tasks\.t\.ordered must list the classes from low to high"):
        prepared(tmp_path, graded(GRADES), ordered=True, metric="quadratic_kappa")


def test_a_listed_order_has_all_classes_and_no_other(tmp_path):
    with pytest.raises(ConfigError, match=r"must list the classes of .*low, high, medium; got low, high"):
        prepared(tmp_path, graded(GRADES), ordered=["low", "high"], metric="quadratic_kappa")


@pytest.mark.parametrize("names", [["1", "2", "10"], ["A", "B", "C"]])
def test_numbers_and_letters_have_an_order_of_their_own(tmp_path, names):
    study = prepared(tmp_path, graded(names[::-1]), ordered=True, metric="quadratic_kappa")
    assert study.tasks[0].names == tuple(names)


def test_lists_of_labels_are_read_as_python_writes_them(tmp_path):
    cells = ["\"['joy', 'anger']\"", "\"['fear']\"", '"[]"'] * 10
    rows = {"text": [f"text {n}" for n in range(30)], "tags": cells}
    study = prepared(tmp_path, rows, columns={"labels": "tags"}, metric="macro_f1")
    assert study.tasks[0].names == ("anger", "fear", "joy")


def test_labels_that_look_like_lists_of_labels_are_told(tmp_path):
    cells = ['"joy, anger"', '"anger, fear"', '"fear, joy"'] * 10
    rows = {"text": [f"text {n}" for n in range(30)], "tags": cells}
    study = prepared(tmp_path, rows, columns={"labels": "tags", "separator": "|"}, metric="macro_f1")
    assert any("look like several labels" in notice for notice in study.notices)


def test_validation_rows_need_no_weights(tmp_path):
    (tmp_path / "dev.csv").write_text("text,label\nsun,1\nrain,2\n")
    rows = graded(["1", "2"]) | {"w": [0.5] * 30}
    study = prepared(tmp_path, rows, row_weight="w", validation=str(tmp_path / "dev.csv"))
    assert study.parts["t"]["validation"].rows == 2
