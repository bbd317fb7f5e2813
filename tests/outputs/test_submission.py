from __future__ import annotations

import csv
import io
import json
import zipfile
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.config.study import GlueKind
from tutti.errors import SubmissionError
from tutti.outputs.submission.formats.csv import Csv
from tutti.outputs.submission.formats.glue import OFFICIAL, lacking
from tutti.outputs.submission.submission import FORMATS, Formats, check, zipped
from tutti.tasks.task import Task

TASK = Task("topic", ("100", "108"), pair=False, metric="macro_f1", submission="competition")
EXPECTED = ["0", "1", "2"]

# everything a UTF-8 file can hold
texts = st.text(st.characters(codec="utf-8"))


def faults(**changes) -> str:
    plain = {"part": "test", "expected": EXPECTED, "ids": EXPECTED, "labels": ["100", "108", "100"]}
    with pytest.raises(SubmissionError) as error:
        check(TASK, **{**plain, **changes})
    return str(error.value)


def test_a_missing_row_is_counted_and_named():
    message = faults(ids=["0", "2"], labels=["100", "100"])
    assert "the submission of topic, test must have the 3 rows of the test file; got 2 rows" in message
    assert "must hold every id of the test file; got no '1'" in message


def test_a_row_that_the_file_does_not_have_is_named():
    message = faults(ids=["0", "1", "7"])
    assert "must hold only ids of the test file; got '7'" in message
    assert "got no '2'" in message


def test_an_id_that_stands_twice_is_named():
    assert "must hold every id once; got '1' again" in faults(ids=["0", "1", "1"])
    assert "the test file behind the submission" in faults(expected=["0", "1", "1"])


def test_another_order_is_said_with_the_first_row_that_differs():
    assert "got id '2' in row 2, where the file has '1'" in faults(ids=["0", "2", "1"])


def test_a_label_that_the_task_does_not_have_is_named():
    message = faults(labels=["100", "999", "100"])
    assert "must hold only labels of the task ('100', '108'); got '999'" in message


def test_a_missing_label_is_counted():
    assert "must have one label for each of its 3 rows; got 2 labels" in faults(labels=["100", "108"])


def test_all_faults_come_at_once_and_long_lists_are_cut():
    message = faults(ids=[str(each) for each in range(100, 120)], labels=["x"] * 20)
    assert len(message.splitlines()) == 4
    assert "'104' and 15 more" in message


SCORE = Task("STS-B", (), pair=True, metric="pearson_spearman", submission="glue")


def test_a_submission_of_a_regression_may_hold_any_finite_number():
    check(SCORE, part="test", expected=EXPECTED, ids=EXPECTED, labels=[-0.5, 2.0, 1e30])


@pytest.mark.parametrize("label", [float("nan"), float("inf"), "2.5"])
def test_what_is_no_finite_number_is_named(label):
    with pytest.raises(SubmissionError, match="STS-B, test must hold only finite numbers; got") as error:
        check(SCORE, part="test", expected=EXPECTED, ids=EXPECTED, labels=[0.5, label, 1.0])
    assert repr(str(label)) in str(error.value)


def test_each_format_writes_values_its_own_way():
    ids, values = ["0", "1", "2"], [3.8, -0.0001, 4.99951]
    assert FORMATS["glue"].render(ids, values) == b"index\tprediction\n0\t3.800\n1\t0.000\n2\t5.000\n"
    assert FORMATS["csv"].render(ids, values) == b"id,label\r\n0,3.8\r\n1,-0.0001\r\n2,4.99951\r\n"
    lines = FORMATS["competition"].render(ids, values).decode().splitlines()
    assert lines[0] == '{"id": "0", "label": 3.8}'
    assert [json.loads(line)["label"] for line in lines] == values


def test_the_competition_format_is_json_lines():
    form = FORMATS["competition"]
    assert form.place("topic", "test") == ("test", "topic_predict.json")
    assert form.place("TNEWS", "test-round1") == ("test-round1", "tnews_predict.json")  # as the competition names it
    assert form.render(["0", "1"], ["108", "快乐"]).decode() == (
        '{"id": "0", "label": "108"}\n{"id": "1", "label": "快乐"}\n'
    )


def test_the_glue_format_has_a_header_and_tabs():
    form = FORMATS["glue"]
    assert form.place("CoLA", "test") == ("test", "CoLA.tsv")
    assert form.render(["0", "1"], ["1", '"q"']) == b'index\tprediction\n0\t1\n1\t"q"\n'


@pytest.mark.parametrize("label", ["a\tb", "a\nb", "a\rb"])
def test_the_glue_format_refuses_what_would_break_its_rows(label):
    with pytest.raises(SubmissionError, match=r"no tab and no line feed.*; set `submission: csv` in the recipe\."):
        FORMATS["glue"].render(["0"], [label])


def test_the_csv_format_quotes_as_rfc_4180_says():
    form = FORMATS["csv"]
    assert form.place("topic", "test") == ("test", "topic.csv")
    assert form.render(["0", "1"], ['a,"b"', "c d"]) == b'id,label\r\n0,"a,""b"""\r\n1,c d\r\n'


@given(st.lists(st.tuples(texts, texts)))
def test_json_lines_come_back_as_they_went(rows):
    content = FORMATS["competition"].render([row for row, _ in rows], [label for _, label in rows]).decode()
    back = [json.loads(line) for line in content.split("\n")[:-1]]
    assert [(each["id"], each["label"]) for each in back] == rows


@given(st.lists(st.tuples(texts, texts)))
def test_csv_comes_back_as_it_went(rows):
    content = FORMATS["csv"].render([row for row, _ in rows], [label for _, label in rows]).decode()
    assert [tuple(row) for row in csv.reader(io.StringIO(content, newline=""))][1:] == rows


def test_a_zip_of_the_same_files_is_the_same_to_the_byte():
    files = {"a_predict.json": b'{"id": "0"}\n', "b.tsv": "文本\n".encode()}
    assert zipped(files) == zipped(dict(files))
    archive = zipfile.ZipFile(io.BytesIO(zipped(files)))
    assert archive.testzip() is None
    assert {name: archive.read(name) for name in archive.namelist()} == files
    assert {each.date_time for each in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def template(tmp_path, text: str) -> Csv:
    (tmp_path / "sample.csv").write_text(text, encoding="utf-8-sig")
    return Csv.by_template(tmp_path / "sample.csv")


def test_a_template_gives_its_header_and_its_order(tmp_path):
    form = template(tmp_path, 'Row ID,"target, class"\n2,x\n0,x\n1,x\n')
    assert form.render(EXPECTED, ["a", "b", "c"]) == b'Row ID,"target, class"\r\n2,c\r\n0,a\r\n1,b\r\n'
    assert form.place("topic", "test") == ("test", "topic.csv")


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("id\n0\n", "must be a CSV file with a header, .*; got the column id alone"),
        ("id,a,a\n0,0.5,0.5\n", "must have columns of different names; got a twice"),
        ("id,label\n0,x\n1\n", ", line 3 must have 2 columns like the header; got 1"),
        ("id,label\n0,x\n0,y\n", "got the id '0' twice"),
        ("id,label\n", "got no row below a header"),
    ],
)
def test_a_template_that_is_no_table_of_ids_and_labels_is_refused(tmp_path, text, got):
    with pytest.raises(SubmissionError, match=f"sample.csv.*{got}"):
        template(tmp_path, text)


def test_a_template_that_is_not_utf_8_is_refused_with_its_line(tmp_path):
    (tmp_path / "sample.csv").write_bytes(b"id,label\n0,caf\xe9\n")
    with pytest.raises(SubmissionError, match=r"sample.csv, line 2 must be UTF-8; got byte 0xe9"):
        Csv.by_template(tmp_path / "sample.csv")


def by_sample(tmp_path, labels: str, *classes: str) -> tuple[list[str], list[str]]:
    """The labels written for one row of each class, and the notes, with a sample of these labels."""
    task = Task("t", classes, pair=False, metric="accuracy" if classes else "pearson", submission="csv")
    rows = [*enumerate(labels.split("|"))]
    (tmp_path / "sample.csv").write_text("Id,label\n" + "".join(f"{row},{label}\n" for row, label in rows))
    forms = Formats(templates={"t": tmp_path / "sample.csv"})
    ids = [str(row) for row, _ in rows]
    forms.check({"t": {"test": ids}}, [task])
    probabilities = np.full((len(ids), len(classes)), 0.25) + 0.5 * np.eye(len(ids), len(classes))
    outputs = probabilities if classes else np.full(len(ids), 0.25)
    decided = outputs.argmax(axis=1) if classes else outputs
    content = forms.render(task, "test", ids, forms.items(task, "test", decided=decided, outputs=outputs))
    return [line.split(",")[1] for line in content.decode().split("\r\n")[1:-1]], [*forms.notes(task, "test")]


def test_labels_are_spelled_as_the_sample_spells_them_and_this_is_told(tmp_path):
    written, notes = by_sample(tmp_path, "0|0", "0.0", "1.0")
    assert written == ["0", "1"]
    assert notes == ["Labels of t, test are spelled as in sample.csv: 0 for 0.0, 1 for 1.0."]
    assert by_sample(tmp_path, "1|0", "0", "1") == (["0", "1"], [])


@pytest.mark.parametrize("labels", ["|", "?|?", "nan|NaN"])
def test_a_sample_without_labels_leaves_them_as_they_are(tmp_path, labels):
    assert by_sample(tmp_path, labels, "0.0", "1.0") == (["0.0", "1.0"], [])


def test_a_sample_of_probabilities_gets_those_of_the_second_of_two_classes(tmp_path):
    assert by_sample(tmp_path, "0.5|0.5", "0", "1") == (["0.25", "0.75"], [])
    assert by_sample(tmp_path, "0|0.5", "0", "1") == (["0.25", "0.75"], [])


def test_of_more_classes_one_column_of_probabilities_gets_the_classes_and_this_is_told(tmp_path):
    written, notes = by_sample(tmp_path, "0.5|0.5|0.5", "a", "b", "c")
    assert written == ["a", "b", "c"]
    assert len(notes) == 1
    assert "numbers such as 0.5 as labels, and the submission of t, test has classes" in notes[0]


def test_a_sample_of_other_classes_is_refused(tmp_path):
    message = r"sample.csv must have labels of the task, calm, glad, or none; got '0', '1'; name the task's own sample"
    with pytest.raises(SubmissionError, match=message):
        by_sample(tmp_path, "0|1", "calm", "glad")
    with pytest.raises(SubmissionError, match="labels of the task, which are numbers, or none; got 'calm'"):
        by_sample(tmp_path, "calm|calm")
    assert by_sample(tmp_path, "0|0") == (["0.25", "0.25"], [])
    assert by_sample(tmp_path, "sad|calm", "calm", "glad") == (["calm", "glad"], [])


@pytest.mark.parametrize(
    ("task", "file"), [("sst2", "SST-2.tsv"), ("MNLI-m", "MNLI-m.tsv"), ("mnli_mm", "MNLI-mm.tsv"), ("own", "own.tsv")]
)
def test_glue_files_have_their_official_names(task, file):
    assert FORMATS["glue"].place(task, "test") == ("test", file)


def test_what_a_whole_glue_submission_lacks_is_known_and_of_no_other_zip():
    assert lacking(OFFICIAL) == ()
    assert lacking(["CoLA.tsv"]) == tuple(name for name in OFFICIAL if name != "CoLA.tsv")
    assert lacking(["topic.tsv"]) == ()
    assert len(OFFICIAL) == 11


def test_tasks_of_glue_s_kinds_under_any_name_make_a_whole_submission():
    names = {f"task{number}": kind for number, kind in enumerate(get_args(GlueKind))}
    places = [
        Formats(glue_tasks=names).place(Task(name, ("0", "1"), pair=True, metric="f1", submission="glue"), part)
        for name, kind in names.items()
        for part in (("test-m", "test-mm", "test-ax") if kind == "MNLI" else ("test",))
    ]
    assert sorted(places) == [("test", name) for name in OFFICIAL]


def test_of_a_glue_task_with_several_test_sets_each_that_glue_names_stands_with_the_other_tasks():
    task = Task("MNLI", ("contradiction", "entailment", "neutral"), pair=True, metric="accuracy", submission="glue")
    places = [Formats().place(task, part) for part in ("test-m", "test-mm", "test-ax", "test-old", "test")]
    assert places == [
        ("test", "MNLI-m.tsv"),
        ("test", "MNLI-mm.tsv"),
        ("test", "AX.tsv"),
        ("test-old", "MNLI.tsv"),
        ("test", "MNLI.tsv"),
    ]
    assert Formats("csv").place(task, "test-m") == ("test-m", "MNLI.csv")


def test_labels_that_have_names_on_the_hub_are_written_as_glue_takes_them():
    task = Task("MRPC", ("not_equivalent", "equivalent"), pair=True, metric="f1", submission="glue")
    content = Formats().render(task, "test", ["0", "1"], ["equivalent", "not_equivalent"])
    assert content == b"index\tprediction\n0\t1\n1\t0\n"
    assert Formats("csv").render(task, "test", ["0"], ["equivalent"]) == b"id,label\r\n0,equivalent\r\n"
    own = replace(task, name="pairs")
    assert Formats().render(own, "test", ["0"], ["equivalent"]) == b"index\tprediction\n0\tequivalent\n"


def test_only_glue_s_own_format_names_a_file_by_the_kind_of_its_task():
    task = Task("mine", ("0", "1"), pair=False, metric="matthews", submission="glue")
    assert Formats(glue_tasks={"mine": "CoLA"}).place(task, "test") == ("test", "CoLA.tsv")
    assert Formats("csv", glue_tasks={"mine": "CoLA"}).place(task, "test") == ("test", "mine.csv")
    assert Formats("competition", glue_tasks={"mine": "CoLA"}).place(task, "test") == (
        "test",
        "mine_predict.json",
    )


def test_of_two_tasks_of_a_kind_the_one_that_is_called_so_has_the_official_file():
    tasks = [Task(name, ("0", "1"), pair=True, metric="f1", submission="glue") for name in ("rte", "scitail", "nli")]
    layouts = Formats(glue_tasks={"rte": "rte", "scitail": "RTE", "nli": "MNLI", "topic": "topic"})
    assert [layouts.place(task, "test")[1] for task in tasks] == ["RTE.tsv", "scitail.tsv", "MNLI.tsv"]
    misnamed = Task("qnli", ("0", "1"), pair=True, metric="f1", submission="glue")
    assert Formats(glue_tasks={"rte": "rte", "qnli": "RTE"}).place(misnamed, "test")[1] == "RTE.tsv"
