"""Which column of rows to predict has their ids, where the study file does not name one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutti.config.study import StudyConfig
from tutti.errors import TaskFileError
from tutti.tasks.build import numbering_note, sample_ids_of
from tutti.tasks.layouts.hub import Hub
from tutti.tasks.layouts.table import Table

Write = Callable[..., str]


def ids(source: str, **columns: object) -> list[str]:
    """The ids as ``read`` has them, and as the blocks of a large file have them."""
    layout = Table(**columns)  # type: ignore[arg-type]
    read = layout.read(source, labelled=False)["id"].tolist()
    blocks = layout.with_ids(source).blocks(source, rows=1)
    assert [each for block in blocks for each in block["id"]] == read
    return read


@pytest.mark.parametrize(
    "name", ["id", "Id", "ID", " Id ", "row_id", "ROW_ID", "row-id", "row id", "essayId", "textID", "文章ID", "文章id"]
)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_ids_are_known_by_their_column_s_name_in_any_spelling(write: Write, name: str, suffix: str) -> None:
    rows = [{name: key, "text": text} for key, text in (("907", "a"), ("14", "b"))]
    mark = {".csv": ",", ".tsv": "\t"}.get(suffix, "")
    lines = [f"{name}{mark}text", *(mark.join(row.values()) for row in rows)] if mark else map(json.dumps, rows)
    source = write("".join(f"{line}\n" for line in lines), f"rows{suffix}")
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    assert ids(source) == ["907", "14"]
    assert numbering_note(Table(), source) is None


@pytest.mark.parametrize("name", ["paid", "PAID", "valid", "uuid", "id_of", "key", "ids"])
def test_other_columns_are_no_ids_though_their_values_differ(write: Write, name: str) -> None:
    assert ids(write(f"{name},text\n907,a\n14,b\n", "rows.csv")) == ["0", "1"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", "user_id,text\n7,a\n7,b\n"),
        ("rows.csv", "user_id,text\n7,a\n ,b\n"),
        ("rows.jsonl", '{"user_id": 7, "text": "a"}\n{"text": "b"}\n'),
        ("rows.jsonl", '{"user_id": [7], "text": "a"}\n{"user_id": [8], "text": "b"}\n'),
    ],
)
def test_a_column_that_only_ends_like_ids_is_none_where_it_repeats_or_has_an_empty_cell(write, name, content):
    source = write(content, name)
    assert ids(source) == ["0", "1"]
    assert numbering_note(Table(), source) == (
        f"the rows of {name} are numbered from 0, as no column is known to hold their ids; "
        "`columns: {id: NAME}` names one"
    )


def test_texts_and_labels_are_no_ids(write: Write) -> None:
    source = write("text_id,pair_id,label_id\n7,8,9\n1,2,3\n", "rows.csv")
    assert ids(source, text="text_id", text_b="pair_id", label="label_id") == ["0", "1"]


def test_the_sample_s_name_goes_before_id_and_id_before_all_others(write: Write) -> None:
    source = write("row_id,ID,id,key,text\n1,2,3,4,a\n", "rows.csv")
    assert ids(source, sample_ids=("key",)) == ["4"]
    assert ids(source, sample_ids=("answer_id",)) == ["3"]
    assert ids(write("row_id,ID,text\n1,2,a\n", "rows.csv")) == ["2"]


def test_of_two_columns_that_may_be_ids_neither_is_taken_and_both_are_told(write: Write) -> None:
    source = write("row_id,essay_id,user_id,text\n7,8,1,a\n5,6,1,b\n", "rows.csv")
    assert ids(source) == ["0", "1"]
    told = numbering_note(Table(), source) or ""
    assert "numbered from 0, as row_id and essay_id could all be their ids; `columns: {id: NAME}` names one" in told
    assert numbering_note(Table(id="row_id"), source) is None


def test_rows_of_the_hub_s_data_sets_are_numbered_and_it_is_told() -> None:
    told = numbering_note(Hub("some/set"), "test") or ""
    assert "the rows of the split test are numbered from 0" in told
    assert numbering_note(Hub("some/set", columns=Table(id="idx")), "test") is None


def test_rows_of_a_table_are_not_numbered_where_only_the_first_json_row_lacks_its_id(write: Write) -> None:
    source = write('{"text": "a"}\n{"id": 7, "text": "b"}\n', "rows.jsonl")
    with pytest.raises(TaskFileError, match="line 1 must have the key 'id' like other rows"):
        Table().read(source, labelled=False)


def test_ids_that_are_floats_are_written_whole_or_refused_where_digits_are_lost(tmp_path: Path) -> None:
    def read(values: list[float]) -> list[str]:
        pq.write_table(pa.table({"Id": values, "text": ["a"] * len(values)}), tmp_path / "rows.parquet")
        return ids(str(tmp_path / "rows.parquet"))

    assert read([7.0, -3.0, 2.5, 2.0**53 - 1]) == ["7", "-3", "2.5", "9007199254740991"]
    message = r"row 2 must have all digits of its 'Id'; got the rounded number 1e\+18; write the ids as whole numbers"
    with pytest.raises(TaskFileError, match=message):
        read([7.0, 1e18])


def test_the_samples_of_the_study_s_own_recipe_name_the_ids(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"{name}_id,label\n1,x\n")
    templates = {"t/one": "a.csv", "t/two": "b.csv"}
    (tmp_path / "own.yaml").write_text(json.dumps({"submission": {"templates": templates}}))
    study = {
        "study": "s",
        "backbone": "b",
        "tasks": {"t": {"layout": "table", "train": "train.csv"}},
        "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-3}},
    }
    of = {name: study | {"ensemble": {"recipe": name}} for name in ("auto", str(tmp_path / "own.yaml"), "gone.yaml")}
    found = [sample_ids_of(StudyConfig.model_validate(each)) for each in of.values()]
    assert found == [{}, {"t": ("a_id", "b_id")}, {}]
