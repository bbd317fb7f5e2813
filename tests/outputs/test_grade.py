"""Labels of test rows, read from whatever file has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from tutti.config.cleaning import Cleaning
from tutti.errors import SubmissionError, TaskFileError
from tutti.outputs.election.grade import read_labels
from tutti.outputs.submission.submission import FORMATS, Formats
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.glue import Glue
from tutti.tasks.layouts.table import Table
from tutti.tasks.task import Task

MOOD = Task("mood", ("calm", "glad"), pair=False, metric="macro_f1", submission="competition")
WARMTH = Task("warmth", (), pair=False, metric="pearson", submission="csv")
ROWS = ["7", "3", "5"]  # glad, calm, glad


def rows_of(ids: Sequence[str] = ROWS, texts: Sequence[str] = ("sun", "still, sea", "a day")) -> pd.DataFrame:
    return pd.DataFrame({"id": ids, "text": texts})


def read(tmp_path, content: str, *, name="labels.csv", task=MOOD, layout=None, expected=None, **cleaning) -> np.ndarray:
    (tmp_path / name).write_text(content, encoding="utf8")
    return read_labels(
        str(tmp_path / name),
        task=task,
        layout=layout or Competition(pair=False),
        expected=rows_of() if expected is None else expected,
        cleaning=Cleaning(**cleaning),
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.csv", "3\tstill, sea\tcalm\n5\ta day\tglad\n7\tsun\tglad\n8\tmore\tcalm\n"),
        ("labels.csv", "id,label\r\n3,calm\r\n5,glad\r\n7,glad\r\n"),
        ("mood.tsv", "index\tprediction\n3\tcalm\n5\tglad\n7\tglad\n"),
        ("mood.json", '{"id": "3", "label": "calm"}\n{"id": "5", "label": "glad"}\n{"id": 7, "label": "glad"}\n'),
    ],
)
def test_labels_come_in_the_test_file_s_order(tmp_path, name, content):
    labels = read(tmp_path, content, name=name)
    assert labels.tolist() == [1, 0, 1]
    assert labels.dtype == np.int64


@pytest.mark.parametrize(
    ("name", "glue", "classes"),
    [
        ("cola", None, ("unacceptable", "acceptable")),
        ("paraphrases", "MRPC", ("equivalent", "not_equivalent")),
        ("rte", None, ("entailment", "not_entailment")),
        ("SST-2", None, ("0", "1")),
        ("mood", None, ("calm", "glad")),
    ],
)
def test_what_tutti_writes_for_glue_it_reads_again(tmp_path, name, glue, classes):
    task = Task(name, classes, pair=False, metric="accuracy", submission="glue")
    labels = [classes[1], classes[0], classes[1]]
    in_glue_s_spelling = Formats(glue_tasks={name: glue or name}).render(task, "test", ROWS, labels)
    file, expected, cleaning = tmp_path / "labels.tsv", rows_of(), Cleaning()
    for content in (in_glue_s_spelling, FORMATS["glue"].render(ROWS, labels)):
        file.write_bytes(content)
        read = read_labels(str(file), task=task, layout=Table(), expected=expected, cleaning=cleaning, glue=glue)
        assert read.tolist() == [1, 0, 1]


@pytest.mark.parametrize(("name", "header"), [("cola", "id\tlabel"), ("mood", "index\tprediction")])
def test_numbers_are_no_names_of_labels_elsewhere(tmp_path, name, header):
    task = Task(name, ("unacceptable", "acceptable"), pair=False, metric="accuracy", submission="glue")
    with pytest.raises(SubmissionError, match=r"only labels of the task \(unacceptable, acceptable\); got '0', '1'"):
        read(tmp_path, f"{header}\n3\t0\n5\t1\n7\t1\n", name="labels.tsv", task=task)


def test_numbers_are_read_for_a_regression(tmp_path):
    values = read(tmp_path, "id,label\n3,0.5\n5,-1\n7,2e1\n", task=WARMTH)
    assert values.tolist() == [20, 0.5, -1]
    assert values.dtype == np.float32


def test_a_glue_dev_file_grades_by_row_number(tmp_path):
    rows, dev = "sentence\tlabel\na day\tglad\nsea\tcalm\n", {"name": "dev.tsv", "layout": Glue("SST-2")}
    assert read(tmp_path, rows, **dev, expected=rows_of(["1", "0"], ["sea", "a day"])).tolist() == [0, 1]
    with pytest.raises(SubmissionError, match=r"or a table of its ids and labels \(columns id and label\)"):
        read(tmp_path, rows, **dev, expected=rows_of(["7", "0"], ["sea", "a day"]))


@pytest.mark.parametrize(
    ("name", "content", "layout"),
    [
        ("train.csv", "0\tsun\tcalm\n1\tsea\tglad\n2\ta day\tglad\n", Competition(pair=False)),
        ("dev.tsv", "sentence\tlabel\nsun\tcalm\nsea\tglad\na day\tglad\n", Glue("SST-2")),
        ("train.tsv", "text\tlabel\nsun\tcalm\nsea\tglad\na day\tglad\n", Table()),
    ],
)
def test_labels_of_other_texts_with_the_same_ids_are_refused(tmp_path, name, content, layout):
    message = (
        r"must have the texts of the test rows of mood; got others for 1 of 2 rows, such as '1'; name the labels of"
    )
    with pytest.raises(SubmissionError, match=message):
        read(tmp_path, content, name=name, layout=layout, expected=rows_of(["1", "0"], ["the sea", "sun"]))


@pytest.mark.parametrize("ids", [("907", "14"), ("1", "0")])  # of the table, or row numbers, as once prepared
def test_a_file_of_a_task_s_own_table_is_read_by_its_column_id_if_that_has_the_ids(tmp_path, ids):
    rows = "id,text,label\n14,sun,calm\n907,sea,glad\n"
    expected = rows_of([*ids], ["sea", "sun"])
    assert read(tmp_path, rows, name="truth.csv", layout=Table(), expected=expected).tolist() == [1, 0]


@pytest.mark.parametrize("header", ["Id,label", "essay_id,target"])
def test_ids_of_two_columns_may_have_any_spelling_and_labels_the_task_s_own_name(tmp_path, header):
    rows = f"{header}\n3,calm\n5,glad\n7,glad\n"
    assert read(tmp_path, rows, layout=Table(label="target")).tolist() == [1, 0, 1]


def test_of_two_columns_that_may_be_ids_the_one_with_the_test_rows_ids_is_read(tmp_path):
    rows = "row_id,essay_id,text,label\n0,907,sea,calm\n1,14,sun,glad\n"
    expected = rows_of(["14", "907"], ["sun", "sea"])
    assert read(tmp_path, rows, layout=Table(), expected=expected).tolist() == [1, 0]


def test_texts_are_compared_as_they_are_cleaned(tmp_path):
    expected = rows_of(["0"], ["sun!"])
    assert read(tmp_path, "0\tsun!!!\tglad\n", expected=expected, repeated_punctuation=True).tolist() == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,label\n3,calm\n", "have a label for every test row of mood; got none for 2 of 3 rows, such as '7', '5'"),
        ("id,label\n3,calm\n5,sad\n7,glad\n", r"hold only labels of the task \(calm, glad\); got 'sad'"),
    ],
)
def test_labels_of_another_file_are_refused(tmp_path, content, message):
    with pytest.raises(SubmissionError, match=message):
        read(tmp_path, content)


def test_a_table_with_ids_from_zero_on_has_ids(tmp_path):
    rows = "id,label\n0,calm\n1,glad\n2,calm\n"
    assert read(tmp_path, rows, expected=rows_of(["2", "1"], ["sun", "sea"])).tolist() == [0, 1]
    with pytest.raises(SubmissionError, match=r"such as 't1'; name the labels of this very test file"):
        read(tmp_path, rows, expected=rows_of(["t1"], ["sun"]))


def test_what_is_no_number_is_refused_for_a_regression(tmp_path):
    with pytest.raises(TaskFileError, match=r"must have a number as its label.*; got 'warm'"):
        read(tmp_path, "id,label\n3,1\n5,warm\n7,2\n", task=WARMTH)


def test_a_file_in_no_known_layout_is_told_by_the_task_s_own(tmp_path):
    with pytest.raises(TaskFileError, match=r"tab-separated columns.*, or name a table of two columns, id and label"):
        read(tmp_path, "3;calm\n5;glad\n")


def test_labels_may_be_a_parquet_file(tmp_path):
    file = tmp_path / "labels.parquet"
    pd.DataFrame({"label": ["calm", "glad", "glad"], "id": ["3", "5", "7"]}).to_parquet(file)
    labels = read_labels(str(file), task=MOOD, layout=Competition(pair=False), expected=rows_of(), cleaning=Cleaning())
    assert labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("labels.csv", "id,label\n3,calm\n3,glad\n5,glad\n7,glad\n", "'3'"),
        ("labels.jsonl", '{"id": "3", "label": "calm"}\n5\n', "line 2"),
    ],
)
def test_a_table_with_a_faulty_row_is_refused(tmp_path, name, content, message):
    with pytest.raises(TaskFileError, match=message):
        read(tmp_path, content, name=name, layout=Table(id="id", text="id"))
