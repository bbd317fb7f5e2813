"""Texts that a template composes of several columns of a table or a data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
from pandas import DataFrame

from tutti.config.study import TaskConfig
from tutti.config.template import column_name, columns_of, exchanged, filled
from tutti.errors import TaskFileError
from tutti.tasks.build import new_rows_layout, task_spec
from tutti.tasks.layouts.hub import Hub
from tutti.tasks.layouts.table import Table

Write = Callable[..., str]

THREE = "{title} [SEP] {body} ({year})"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{title} [SEP] {body}", "a [SEP] b"),
        ("{{{title}}} {body}, {title}", "{a} b, a"),
        ("Is it so? {body}", "Is it so? b"),
        ("{a column: with! marks}", "c"),
    ],
)
def test_a_template_puts_cells_between_its_words(template: str, text: str) -> None:
    assert filled(template, {"title": ["a"], "body": ["b"], "a column: with! marks": ["c"]}) == [text]


def test_two_columns_of_a_template_change_places_and_all_else_of_it_stays() -> None:
    template = "{{{c}}}: is {a} {b}, or {b}?"
    assert exchanged(template, "a", "b") == "{{{c}}}: is {b} {a}, or {a}?"
    assert exchanged(template, "a", "d") == template


def test_a_pair_in_one_template_is_one_text_with_the_other_order_beside_it(write: Write) -> None:
    source = write("a,b,c,label\nx,y,z,1\n", "a.csv")
    columns, template = {"text": "a", "text_b": "b"}, "In {c}: {a} or {b}?"
    spec = task_spec("A", TaskConfig(layout="table", train=source, template=template, columns=columns))
    assert (spec.pair, spec.orders) == (False, True)
    for layout in (spec.layout, spec.extra_layout, new_rows_layout(spec, Path(source))):
        rows = layout.read(source, labelled=layout is spec.layout)
        assert rows[["text", "text_b"]].values.tolist() == [["In z: x or y?", "In z: y or x?"]]
    other = TaskConfig(layout="table", train=source, template="In {c}: {a}", columns={"text_b": "b"})
    assert not other.orders
    with pytest.raises(TaskFileError) as error:
        spec.layout.read(write("a,c,label\nx,z,1\n", "b.csv"), labelled=True)
    assert str(error.value).count("'b'") == 1


def test_an_empty_cell_is_an_empty_text_and_a_row_of_empty_cells_has_none() -> None:
    assert filled("{title} [SEP] {body}", {"title": ["", " "], "body": ["b", ""]}) == [" [SEP] b", ""]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("a.csv", "id,title,body,year,label\n1,t,b,1999,x\n2,u,,2000,y\n"),
        ("a.tsv", "id\ttitle\tbody\tyear\tlabel\n1\tt\tb\t1999\tx\n2\tu\t\t2000\ty\n"),
        (
            "a.jsonl",
            '{"id": "1", "title": "t", "body": "b", "year": 1999, "label": "x"}\n'
            '{"id": "2", "title": "u", "body": null, "year": 2000, "label": "y"}\n',
        ),
    ],
)
def test_every_sort_of_table_composes_texts_for_training_and_for_rows_to_predict(write, file, content):
    layout, source = Table(template=THREE), write(content, file)
    texts = ["t [SEP] b (1999)", "u [SEP]  (2000)"]
    assert layout.read(source, labelled=True)["text"].tolist() == texts
    assert layout.read(source, labelled=False).to_dict("list") == {"id": ["1", "2"], "text": texts}
    blocks = list(layout.with_ids(source).blocks(source, rows=1))
    assert [row for block in blocks for row in block["text"]] == texts


def test_a_pair_is_of_two_templates_or_of_a_template_and_a_column(write: Write) -> None:
    source = write("title,body,question,label\nt,b,q,1\n", "a.csv")
    for layout in (Table(text="question", template_b="{title}: {body}"), Table(template="{question}", text_b="body")):
        rows = layout.read(source, labelled=True)
        assert rows["text"].tolist() == ["q"]
        assert rows["text_b"].tolist() == [{None: "b"}.get(layout.template_b, "t: b")]
    spec = task_spec("A", TaskConfig(layout="table", train=source, template="{title}", template_b="{question}"))
    assert spec.pair
    assert new_rows_layout(spec, Path(source)).read(source, labelled=False)["text_b"].tolist() == ["q"]


def test_a_data_set_of_the_hub_composes_texts_and_its_fingerprint_knows_the_columns(tmp_path: Path) -> None:
    def hub(body: str) -> Hub:
        rows = datasets.Dataset.from_dict({"title": ["t", None], "body": [body, "c"], "label": ["x", "y"]})
        datasets.DatasetDict({"train": rows}).save_to_disk(tmp_path / body)
        return Hub(str(tmp_path / body), columns=Table(template="{title} {body}"))

    assert hub("b").read("train", labelled=True)["text"].tolist() == ["t b", " c"]
    assert hub("b").fingerprint("train") != hub("other").fingerprint("train")


def test_a_column_that_is_missing_is_named_with_the_nearest(write: Write) -> None:
    source = write("titel,body,label\nt,b,1\n", "a.csv")
    with pytest.raises(TaskFileError) as error:
        Table(template="{title} {body}").read(source, labelled=True)
    assert str(error.value).endswith(
        "must have the column 'title' (template); got the columns titel, body, label; did you mean 'titel'? "
        "Correct the name."
    )


def test_a_cell_that_is_no_text_is_named_by_its_row(write: Write) -> None:
    source = write('{"title": ["t"], "label": "1"}\n', "a.jsonl")
    with pytest.raises(TaskFileError, match=r"line 1 must have a text or number in 'title'; got a list"):
        Table(template="{title}").read(source, labelled=True)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_composed_texts_that_are_written_are_read_back_by_the_same_layout(tmp_path: Path, suffix: str) -> None:
    layout = Table(template="Title: {title}\n[SEP] {{{body}}}", template_b="{title}")  # its own texts fit it again
    rows = DataFrame({"id": ["0"], "text": ["Title: t [SEP] {b}"], "text_b": ["t"], "label": ["x"]})
    layout.write(rows, tmp_path / f"rows{suffix}")
    read = layout.read(str(tmp_path / f"rows{suffix}"), labelled=True)
    assert read.to_dict("list") == rows.to_dict("list")
    with pytest.raises(TaskFileError, match=r"must have the column 'title' \(template\)"):
        Table(template="Another: {title}").read(str(tmp_path / f"rows{suffix}"), labelled=True)


def test_a_template_names_its_columns_each_once_and_makes_a_column_s_name() -> None:
    assert columns_of("{a} {b} {a}") == ["a", "b"]
    assert column_name("{a}\n {b}") == "{a} {b}"
