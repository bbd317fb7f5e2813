"""What is written in the columns of a competition's sample submission, for each kind of task."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from tutti.errors import SubmissionError
from tutti.outputs.submission.submission import FORMATS, Formats
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.task import Task

LABELS = ("toxic", "insult", "threat")
OUTPUTS = {
    "labels": np.array([[0.9, 0.2, 0.7], [0.1, 0.3, 0.2]], dtype=np.float32),
    "classes": np.array([[0.5, 0.2, 0.3], [0.1, 0.3, 0.6]], dtype=np.float32),
    "values": np.array([[1.5, 0.2, -3], [0.1, 7, 2]], dtype=np.float32),
}


def written(
    folder: Path,
    sample: str | None,
    *,
    kind: str = "labels",
    metric: str = "macro_f1",
    names: tuple[str, ...] = LABELS,
    outputs: np.ndarray | None = None,
    separator: str | None = None,
    form: str = "csv",
) -> list[list[str]]:
    """The rows of the submission file of two rows, a and b, below its header."""
    task = Task("t", names, pair=False, metric=metric, submission=form, kind_name=kind)
    if sample is not None:
        (folder / "sample.csv").write_text(sample)
    templates = {"t": folder / "sample.csv"} if sample is not None else {}
    forms = Formats(templates=templates, separators={"t": separator} if separator else {})
    forms.check({"t": {"test": ["a", "b"]}}, [task])
    outputs = OUTPUTS[kind] if outputs is None else outputs
    items = forms.items(task, "test", decided=KINDS[kind].decide(outputs), outputs=outputs)
    content = forms.render(task, "test", ["a", "b"], items).decode()
    return list(csv.reader(io.StringIO(content, newline=""))) if form == "csv" else content.splitlines()


def test_without_a_sample_each_label_and_each_number_has_its_column(tmp_path):
    header = ["id", *LABELS]
    assert written(tmp_path, None) == [header, ["a", "1", "0", "1"], ["b", "0", "0", "0"]]
    assert written(tmp_path, None, metric="roc_auc") == [header, ["a", "0.9", "0.2", "0.7"], ["b", "0.1", "0.3", "0.2"]]
    numbers = written(tmp_path, None, kind="values", metric="rmse")
    assert numbers == [header, ["a", "1.5", "0.2", "-3.0"], ["b", "0.1", "7.0", "2.0"]]


def test_without_a_sample_classes_have_probabilities_where_the_metric_needs_them(tmp_path):
    rows = written(tmp_path, None, kind="classes", metric="log_loss")
    assert rows == [["id", *LABELS], ["a", "0.5", "0.2", "0.3"], ["b", "0.1", "0.3", "0.6"]]
    two = np.array([[0.25, 0.75], [1, 0]], dtype=np.float32)
    rows = written(tmp_path, None, kind="classes", metric="roc_auc", names=("no", "yes"), outputs=two)
    assert rows == [["id", "yes"], ["a", "0.75"], ["b", "0.0"]]
    assert written(tmp_path, None, kind="classes") == [["id", "label"], ["a", "toxic"], ["b", "threat"]]


def test_lines_of_json_have_the_names_of_labels_and_numbers_by_their_names(tmp_path):
    assert written(tmp_path, None, form="competition") == [
        '{"id": "a", "label": ["toxic", "threat"]}',
        '{"id": "b", "label": []}',
    ]
    lines = written(tmp_path, None, form="competition", kind="values", metric="rmse")
    assert lines[0] == '{"id": "a", "label": {"toxic": 1.5, "insult": 0.2, "threat": -3.0}}'
    lines = written(tmp_path, None, form="competition", metric="roc_auc")
    assert lines[1] == '{"id": "b", "label": {"toxic": 0.1, "insult": 0.3, "threat": 0.2}}'


@pytest.mark.parametrize(("kind", "metric"), [("labels", "macro_f1"), ("values", "rmse")])
def test_glue_s_format_has_no_place_for_several_labels(tmp_path, kind, metric):
    with pytest.raises(SubmissionError, match="the glue submission of t, test must have one label or number per row"):
        written(tmp_path, None, form="glue", kind=kind, metric=metric)
    with pytest.raises(SubmissionError, match="a row in the glue format must have one label or number"):
        FORMATS["glue"].render(["a"], [{"toxic": 1, "insult": 0}])


def test_columns_come_in_the_order_and_spelling_of_the_sample_with_what_its_cells_say(tmp_path):
    rows = written(tmp_path, "Id,Threat,toxic,INSULT\nb,0,0,0\na,0,0,0\n")
    assert rows == [["Id", "Threat", "toxic", "INSULT"], ["b", "0", "0", "0"], ["a", "1", "1", "0"]]
    rows = written(tmp_path, "Id,threat,toxic,insult\nb,0.5,0.5,0.5\na,0.5,0.5,0.5\n")
    assert rows[2] == ["a", "0.7", "0.9", "0.2"]
    rows = written(tmp_path, "Id,threat,toxic,insult\nb,0,0,0\na,0,0,0\n", metric="roc_auc")
    assert rows[2] == ["a", "0.7", "0.9", "0.2"]
    rows = written(tmp_path, "Id,threat,toxic,insult\nb,0,0,0\na,0,0,0\n", kind="values", metric="rmse")
    assert rows[2] == ["a", "-3.0", "1.5", "0.2"]


def test_columns_of_classes_have_probabilities_or_the_class_of_each_row(tmp_path):
    classes = {"kind": "classes", "metric": "macro_f1"}
    assert written(tmp_path, "id,insult,threat,toxic\na,0,0,0\nb,1,0,0\n", **classes)[1:] == [
        ["a", "0", "0", "1"],
        ["b", "0", "1", "0"],
    ]
    assert written(tmp_path, "id,insult,threat,toxic\na,0.2,0.4,0.4\nb,1,0,0\n", **classes)[1] == [
        "a",
        "0.2",
        "0.3",
        "0.5",
    ]


@pytest.mark.parametrize(
    ("cells", "metric", "expected"),
    [
        ("0|0", "roc_auc", ["0.75", "0.25"]),
        ("0|0", "macro_f1", ["1", "0"]),
        ("0.5|0.5", "macro_f1", ["0.75", "0.25"]),
        ("|", "roc_auc", ["0.75", "0.25"]),
    ],
)
def test_one_column_of_two_classes_has_the_probability_of_the_second(tmp_path, cells, metric, expected):
    first, second = cells.split("|")
    outputs = np.array([[0.25, 0.75], [0.75, 0.25]], dtype=np.float32)
    sample = f"id,target\na,{first}\nb,{second}\n"
    rows = written(tmp_path, sample, kind="classes", metric=metric, names=("0", "1"), outputs=outputs)
    assert rows == [["id", "target"], ["a", expected[0]], ["b", expected[1]]]


def test_classes_by_their_names_are_classes_whatever_the_metric_needs(tmp_path):
    outputs = np.array([[0.25, 0.75], [0.75, 0.25]], dtype=np.float32)
    options = {"kind": "classes", "metric": "roc_auc", "names": ("no", "yes"), "outputs": outputs}
    assert written(tmp_path, "id,target\na,No\nb,No\n", **options)[1:] == [["a", "Yes"], ["b", "No"]]


@pytest.mark.parametrize(
    ("cell", "separator", "expected"),
    [
        ("toxic insult", None, "toxic threat"),
        ('"toxic,insult"', None, "toxic,threat"),
        ('"toxic, insult"', None, "toxic, threat"),
        ("toxic", "|", "toxic|threat"),
        ("", "|", "toxic|threat"),
        ("", None, "toxic threat"),
        ('"[""toxic""]"', None, '["toxic", "threat"]'),
    ],
)
def test_labels_are_listed_in_one_cell_as_the_sample_lists_them(tmp_path, cell, separator, expected):
    rows = written(tmp_path, f"id,tags\na,{cell}\nb,{cell}\n", separator=separator)
    assert rows == [["id", "tags"], ["a", expected], ["b", "[]" if expected.startswith("[") else ""]]


def test_a_cell_of_several_classes_gets_the_likeliest_first(tmp_path):
    rows = written(tmp_path, "id,guess\na,insult toxic\nb,insult toxic\n", kind="classes", metric="map_at_3")
    assert rows[1:] == [["a", "toxic threat"], ["b", "threat insult"]]


@pytest.mark.parametrize(
    ("cells", "metric", "answers", "expected"),
    [
        (None, "accuracy", "letter", ["C", "B"]),
        (None, "accuracy", "index", ["2", "1"]),
        (None, "accuracy", "number", ["3", "2"]),
        (None, "accuracy", "text", ["west", "no"]),
        (None, "map_at_3", "letter", ["C A B", "B A"]),
        (None, "map_at_3", "index", ["2 0 1", "1 0"]),
        (("A", "A"), "accuracy", "text", ["C", "B"]),
        (("", ""), "accuracy", "index", ["2", "1"]),
        (("0", "0"), "accuracy", "letter", ["2", "1"]),
        (("1", "3"), "accuracy", "letter", ["3", "2"]),
        (("1", "1"), "accuracy", "number", ["3", "2"]),
        (("east", "yes"), "accuracy", "letter", ["west", "no"]),
        (("A B C", "A B C"), "map_at_3", "index", ["C A B", "B A"]),
        (("0 1", "0 1"), "accuracy", "letter", ["2 0", "1 0"]),
    ],
)
def test_candidates_are_written_as_the_sample_s_cells_or_as_in_training(tmp_path, cells, metric, answers, expected):
    outputs = np.array([[0.3, 0.2, 0.5], [0.4, 0.6, 0]], dtype=np.float32)
    task = Task("t", ("A", "B", "C"), False, metric, "csv", "choice", answers=answers)
    if cells is not None:
        (tmp_path / "sample.csv").write_text(f"id,answer\na,{cells[0]}\nb,{cells[1]}\n")
    templates = {} if cells is None else {"t": tmp_path / "sample.csv"}
    forms = Formats(templates=templates, choices={"t": {"test": [["east", "south", "west"], ["yes", "no"]]}})
    forms.check({"t": {"test": ["a", "b"]}}, [task])
    items = forms.items(task, "test", decided=KINDS["choice"].decide(outputs), outputs=outputs)
    content = forms.render(task, "test", ["a", "b"], items).decode()
    assert [row[1] for row in csv.reader(io.StringIO(content, newline=""))][1:] == expected


def test_a_sample_with_semicolons_is_followed_in_them(tmp_path):
    rows = written(tmp_path, "id;toxic;insult;threat\nb;0;0;0\na;0;0;0\n")
    assert rows == [["id;toxic;insult;threat"], ["b;0;0;0"], ["a;1;0;1"]]


def test_a_column_that_says_which_leaderboard_a_row_counts_for_is_left_out(tmp_path):
    rows = written(tmp_path, "id,toxic,insult,threat,Usage\na,0,0,0,Public\nb,0,0,0,Private\n")
    assert rows == [["id", "toxic", "insult", "threat"], ["a", "1", "0", "1"], ["b", "0", "0", "0"]]


@pytest.mark.parametrize(("names", "start"), [(("0", "1", "2"), "class_"), (LABELS, "prob "), (LABELS, "is_T")])
def test_columns_are_outputs_whose_names_follow_what_all_of_them_begin_with(tmp_path, names, start):
    columns = [f"{start}{name}" for name in reversed(names)]
    sample = f"id,{','.join(columns)}\na,0.2,0.2,0.6\nb,0.2,0.2,0.6\n"
    rows = written(tmp_path, sample, kind="classes", names=names)
    assert rows[:2] == [["id", *columns], ["a", "0.3", "0.2", "0.5"]]


def test_ids_and_labels_of_lists_are_spelled_as_in_the_sample(tmp_path):
    rows = written(tmp_path, "id,tags\nB,TOXIC INSULT\nA,TOXIC\n")
    assert rows == [["id", "tags"], ["B", ""], ["A", "TOXIC THREAT"]]
    rows = written(tmp_path, 'id,tags\nA,"[""Toxic""]"\nB,[]\n')
    assert rows[1] == ["A", '["Toxic", "Threat"]']


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        ("toxic,insult", "labels", "must have a column for each output of the task; got none for 'threat'"),
        ("toxic", "labels", "must have a column for each output of the task; got none for 'insult', 'threat'"),
        ("toxic", "values", "must have a column for each output of the task; got none for 'insult', 'threat'"),
    ],
)
def test_columns_of_another_task_are_refused_with_what_differs(tmp_path, columns, kind, message):
    cells = ",".join("0" for _ in columns.split(","))
    metric = "rmse" if kind == "values" else "macro_f1"
    with pytest.raises(SubmissionError, match=message):
        written(tmp_path, f"id,{columns}\na,{cells}\nb,{cells}\n", kind=kind, metric=metric)
