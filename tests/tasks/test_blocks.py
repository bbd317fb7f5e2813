"""Files of rows to predict, read block by block."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.errors import TaskFileError
from tutti.tasks.build import TaskSpec
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.glue import Glue
from tutti.tasks.layouts.protocol import FileLayout
from tutti.tasks.layouts.table import Table
from tutti.workflows.predict import Input

Write = Callable[..., str]
BROKEN = "7\tone\n8\ttwo \ntwo again\n\n9\tthree\r\n10\tfour\nfour again\n"
TEXTS = ['say "hi", you', "NA", "a\u2028b", " spaces ", "好", "", "x" * 40]


def table(folder: Path, suffix: str) -> str:
    path = folder / f"rows{suffix}"
    ids = [f"{row % 5:03}" for row in range(len(TEXTS))]  # repeated ids
    Table(id="id").write(pd.DataFrame({"id": ids, "text": TEXTS, "label": ["1"] * len(TEXTS)}, dtype="str"), path)
    return str(path)


def together(layout: FileLayout, source: str, rows: int) -> pd.DataFrame:
    blocks = list(layout.blocks(source, rows=rows))
    assert all(len(block) for block in blocks)
    return pd.concat(blocks, ignore_index=True)


@settings(max_examples=20)
@given(rows=st.integers(1, 9))
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_blocks_of_any_size_hold_the_rows_of_a_table_in_their_order(tmp_path_factory, suffix, rows):
    source = table(tmp_path_factory.mktemp("table"), suffix)
    read = together(Table(id="id"), source, rows)
    assert read["text"].tolist() == TEXTS
    assert read["id"].tolist() == ["000", "001", "002", "003", "004", "000", "001"]
    other = Table(text="id")  # so that there is no column of ids
    assert together(other, source, rows)["id"].tolist() == [str(row) for row in range(len(TEXTS))]
    assert max(map(len, Table().blocks(source, rows=rows))) <= rows


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_a_key_that_a_later_json_row_omits_is_named_with_its_line_in_every_block(write: Write, rows: int) -> None:
    lines = [
        '{"text": "a", "more": null}',
        '{"text": "b", "more": "c"}',
        "",
        '{"text": "d"}',
        '{"text": "e", "more": "f"}',
    ]
    source, pair = write("\n".join(lines), "rows.jsonl"), Table(text_b="more")
    with pytest.raises(TaskFileError, match=r"line 4 must have the key 'more' like other rows; got text"):
        together(pair, source, rows)
    with pytest.raises(
        TaskFileError, match=r"must have the column 'mroe' .*; got the columns text, more; did you mean"
    ):
        together(Table(text_b="mroe"), source, rows)


@pytest.mark.parametrize("rows", range(1, 8))
def test_a_row_that_line_feeds_broke_is_mended_across_blocks(write: Write, rows: int) -> None:
    source, layout = write(BROKEN), Competition(repair=True)
    pd.testing.assert_frame_equal(together(layout, source, rows), layout.read(source, labelled=False))
    assert together(layout, source, rows)["text"].tolist() == ["one", "two  two again ", "three", "four four again"]


def test_a_file_of_plain_lines_is_refused_at_once_where_broken_rows_are_mended(write: Write) -> None:
    source = write("A line of some other file, without a tab.\n" * 30_000)
    began = time.monotonic()
    with pytest.raises(TaskFileError, match="line 1 must have 2 tab-separated columns"):
        list(Competition(repair=True).blocks(source, rows=1024))
    assert time.monotonic() - began < 5


def broken(folder: Path) -> tuple[FileLayout, Path]:
    (folder / "rows.csv").write_text("".join(f"{row}\tfirst\nsecond {row}\n" for row in range(20)))
    return Competition(repair=True), folder / "rows.csv"


def with_empty_lines(folder: Path) -> tuple[FileLayout, Path]:
    lines = (json.dumps({"text": f"first second {row}"}) + "\n" * (1 + row % 3) for row in range(20))
    (folder / "rows.jsonl").write_text("".join(lines))
    return Table(), folder / "rows.jsonl"


def in_row_groups(folder: Path) -> tuple[FileLayout, Path]:
    texts = pa.array([f"first second {row}" for row in range(20)]).dictionary_encode()
    pq.write_table(pa.table({"text": texts}), folder / "rows.parquet", row_group_size=7)
    return Table(), folder / "rows.parquet"


@pytest.mark.parametrize("size", [1, 3, 4, 19, 20, 21])
@pytest.mark.parametrize("make", [broken, with_empty_lines, in_row_groups])
def test_shards_hold_every_row_once_whatever_blocks_the_layout_reads(tmp_path, make, size):
    layout, file = make(tmp_path)
    new_rows = Input(file, layout, TaskSpec("mood", layout, layout, {}, False, "macro_f1", "csv"), rows=20)
    shards = dict(new_rows.shards(size, skip=set()))
    assert [len(shard) for shard in shards.values()] == [size] * (20 // size) + [20 % size] * (20 % size > 0)
    assert [*shards] == [*range(len(shards))]
    read = pd.concat(shards.values())
    assert read["id"].tolist() == [str(row) for row in range(20)]
    assert read["text"].tolist() == [f"first second {row}" for row in range(20)]
    assert [*dict(new_rows.shards(size, skip={0}))] == [*range(1, len(shards))]


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_line_layouts_read_the_same_rows_in_blocks_as_at_once(write: Write, rows: int) -> None:
    source = write("".join(f"{row}\tfirst {row}\tsecond {row}\n" for row in range(5)) + "\n\n")
    pair = Competition(pair=True)
    pd.testing.assert_frame_equal(together(pair, source, rows), pair.read(source, labelled=False))
    source = write("index\tsentence\n" + "".join(f"{row}\tfirst {row}\n" for row in range(5)))
    pd.testing.assert_frame_equal(together(Glue("SST-2"), source, rows), Glue("SST-2").read(source, labelled=False))


@pytest.mark.parametrize(
    ("layout", "content", "name", "message"),
    [
        (Competition(), "0\ta\n1\tb\n2\tc\td\n", "rows.tsv", "rows.tsv, line 3 must have 2 tab-separated columns"),
        (
            Competition(),
            "id\twords\n0\ta\n",
            "rows.tsv",
            "got a header; take the line out, or call the columns id and text",
        ),
        (Competition(repair=True), "0\ta\n1\tb\n2\tc\td\n", "rows.tsv", "line 3 must have 2 .*; got 3"),
        (Glue("SST-2"), "index\tsentence\n0\ta\n1\n", "rows.tsv", "rows.tsv, line 3 must have 2 tab-separated"),
        (
            Glue("SST-2"),
            "sentence\na\n",
            "rows.tsv",
            "file: index, sentence; got 'sentence'; name the file as GLUE .*, or give it a header with text[.]",
        ),
        (Glue("QNLI"), "sentence\na\n", "rows.tsv", "index, question, sentence; .* a header with text and text_b"),
        (Glue("SST-2"), "index\tsentence\n", "rows.tsv", "must have at least one row; got none"),
        (Table(), "text\na\nb\n", "rows.xls", "must end in .csv, .tsv"),
        (Table(), "text\na\nb\n", "rows.xlsx", "must be a workbook of Excel; got File is not a zip file"),
        (Table(), "text\n", "rows.csv", "must have at least one row; got none"),
        (Table(), "text\n", "rows.tsv", "must have at least one row; got none"),
        (Table(), "sentence\na\n", "rows.tsv", "must have the column 'text' .* sentence; rename the column[.]"),
        (Table(), "text,x\na,1\nb\n", "rows.csv", "line 3 must have 2 columns like the header; got 1"),
        (Table(), "text\tx\na\t1\nb\n", "rows.tsv", "line 3 must have 2 tab-separated columns"),
        (Table(), '{"text": "a"}\n["b"]\n', "rows.jsonl", "line 2 must be one JSON object; got a list"),
        (Table(), b"text\na\n\xff\n", "rows.csv", "line 3 must be UTF-8; got byte 0xff"),
        (Table(), b"PAR1", "rows.parquet", "must be a Parquet file"),
        (Table(), b"", "rows.csv", "must have at least one row; got an empty file"),
        (Table(), b"\n\n \n\n", "rows.csv", "must have at least one row; got an empty file, or white space"),
    ],
)
def test_a_fault_behind_the_first_block_names_its_line(write, layout, content, name, message):
    with pytest.raises(TaskFileError, match=message):
        together(layout, write(content, name), 1)


def test_only_a_file_that_begins_so_is_said_to_have_the_wrong_columns_in_every_line(write: Write) -> None:
    with pytest.raises(
        TaskFileError, match=r"got 3 in every line; set `pair: true` where .*, or check whether this is the right file"
    ):
        together(Competition(), write("0\ta\tb\n1\ta\tb\n"), 2)
    with pytest.raises(TaskFileError, match=r"got 1 in every line; separate the columns by tabs"):
        together(Competition(), write("0,a\n1,b\n"), 2)
    with pytest.raises(TaskFileError, match=r"line 3 must have 2 .*; got 3"):
        together(Competition(), write("0\ta\n1\tb\n2\tc\td\n3\tc\td\n"), 2)


def test_a_character_that_ends_behind_a_chunk_is_one_character(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tutti.tasks.layouts.reading._CHUNK", 3)
    assert together(Competition(), write("0\t好好好😀\n1\t好\n"), 1)["text"].tolist() == ["好好好😀", "好"]
    with pytest.raises(TaskFileError, match="line 2 must be UTF-8; got byte 0xe5 at offset 11"):
        together(Competition(), write("0\t好好\n1\t".encode() + "好".encode()[:2]), 1)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_long_file_takes_no_more_memory_than_a_short_one(tmp_path: Path, suffix: str) -> None:
    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}{suffix}"
        Table().write(pd.DataFrame({"text": [f"row {row} " * 9 for row in range(rows)], "label": "1"}), path)
        tracemalloc.start()
        read = sum(map(len, Table().blocks(str(path), rows=100)))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert read == rows
        return most

    peak(100)  # for the imports
    assert peak(8000) < 1.5 * peak(1000)
