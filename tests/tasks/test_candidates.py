"""A row's own candidates, in tables, and which of them a label means."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas import DataFrame

from tutti.errors import TaskFileError
from tutti.tasks.kinds.choice import letters, place_of
from tutti.tasks.layouts.candidates import answer_form
from tutti.tasks.layouts.table import ANSWERS, Table

CHOICES = [["one", "two"], ["north", "south", "east, west"], ["Anna", "Bert", "Carl", '"Dora"']]
RIGHT = ["B", "A", "D"]
LISTED = Table(id="id", choices=("choices",))
COLUMNS = Table(id="id", choices=("a", "b", "c", "d"))


def frame(choices: list[list[str]] = CHOICES, right: list[str] = RIGHT) -> DataFrame:
    rows = {"id": [*map(str, range(len(right)))], "text": ["t"] * len(right), "choices": [*map(json.dumps, choices)]}
    return DataFrame({**rows, "label": right}, dtype="str")


def lines(path: Path, labels: list[object], choices: list[list[str]] = CHOICES) -> str:
    rows = [
        {"id": n, "text": "t", "choices": own, "label": label}
        for n, (own, label) in enumerate(zip(choices, labels, strict=True))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("form", [None, "letter", "index", "number", "text"])
@pytest.mark.parametrize("layout", [LISTED, COLUMNS], ids=["listed", "columns"])
def test_candidates_that_are_written_are_read_back(tmp_path: Path, suffix: str, form, layout: Table) -> None:
    layout = Table(id="id", choices=layout.choices, answers=form)
    path = tmp_path / f"rows{suffix}"
    layout.write(frame(), path)
    read = layout.read(str(path), labelled=True)
    assert [json.loads(own) for own in read["choices"]] == CHOICES
    assert read["label"].tolist() == RIGHT
    unlabelled = layout.read(str(path), labelled=False)
    assert [json.loads(own) for own in unlabelled["choices"]] == CHOICES
    assert "label" not in unlabelled


@pytest.mark.parametrize(
    ("labels", "form"),
    [
        (["B", "A", "D"], "letter"),
        (["(b)", "a.", "d"], "letter"),
        ([1, 0, 3], "index"),
        (["1.0", "0.0", "3.0"], "index"),
        ([2, 1, 4], "number"),
        (["two", "north", '"Dora"'], "text"),
    ],
)
def test_what_labels_say_of_candidates_is_decided_over_the_whole_file(tmp_path: Path, labels, form: str) -> None:
    read = LISTED.read(lines(tmp_path / "rows.jsonl", labels), labelled=True)
    assert read["label"].tolist() == RIGHT
    assert read.attrs[ANSWERS] == form


def test_numbers_that_are_candidates_are_texts_where_all_rows_have_them() -> None:
    assert answer_form(["7", "1"], [["1", "7", "3"], ["0", "1"]]) == "text"
    assert answer_form(["2", "1"], [["1", "2", "3"], ["0", "1"]]) is None  # places from 0 would fit too
    assert answer_form(["0", "1"], [["1", "2", "3"], ["0", "1"]]) == "index"


def test_letters_are_read_as_such_where_places_are_named(tmp_path: Path) -> None:
    source = lines(tmp_path / "rows.jsonl", ["A", "C"], [["a1", "b1", "c1"]] * 2)
    named = Table(id="id", choices=("choices",), answers="index")
    assert named.read(source, labelled=True)["label"].tolist() == ["A", "C"]


def test_places_that_count_from_0_or_from_1_are_told_apart_or_refused(tmp_path: Path) -> None:
    source = lines(tmp_path / "rows.jsonl", [1, 2, 2], [["a", "b", "c"]] * 3)
    with pytest.raises(TaskFileError, match="tell whether places count from 0 or from 1"):
        LISTED.read(source, labelled=True)
    named = Table(id="id", choices=("choices",), answers="number")
    assert named.read(source, labelled=True)["label"].tolist() == ["A", "B", "B"]


def test_lists_may_be_those_of_python_of_parquet_or_the_texts_of_a_mapping(tmp_path: Path) -> None:
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text", "choices", "label"], ["0", "t", "['a', \"b'\"]", "0"]])
    assert LISTED.read(str(tmp_path / "rows.csv"), labelled=True)["choices"].tolist() == ['["a", "b\'"]']
    table = {"id": [0], "text": ["t"], "choices": [{"text": ["a", "b"], "label": ["A", "B"]}], "label": ["B"]}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    assert LISTED.read(str(tmp_path / "rows.parquet"), labelled=True)["choices"].tolist() == ['["a", "b"]']


@pytest.mark.parametrize(
    ("label", "choices", "fault"),
    [
        ("E", ["a", "b"], "must name one of its candidates as its label, by letter; got 'E' for a, b;"),
        ("A", ["a"], "must have two candidates or more; got 'a' alone"),
        ("A", ["a", "a "], "must have candidates that differ; got 'a' twice"),
        ("A", ["a", "", "b"], "must have no empty candidate; got one at place 2"),
        ("A", [], "must have candidates, a list of two or more; got none"),
    ],
)
def test_a_fault_of_candidates_names_its_row(tmp_path: Path, label: str, choices: list[str], fault: str) -> None:
    source = lines(tmp_path / "rows.jsonl", ["A", "B", label], [["a", "b"], ["a", "b"], choices])
    with pytest.raises(TaskFileError, match=f"line 3 {fault}"):
        LISTED.read(source, labelled=True)


def test_rows_to_predict_may_have_one_candidate_or_equal_ones(tmp_path: Path) -> None:
    source = lines(tmp_path / "rows.jsonl", ["", ""], [["a"], ["a", "a"]])
    assert LISTED.read(source, labelled=False)["choices"].tolist() == ['["a"]', '["a", "a"]']


def test_candidates_are_called_by_letters_and_then_by_two() -> None:
    names = letters(60)
    assert names[:2] + names[25:28] + names[51:53] == ("A", "B", "Z", "AA", "AB", "AZ", "BA")
    assert [place_of(name) for name in names] == [*range(60)]
    assert place_of("a1") == -1
