"""Task files that are packed, and workbooks of Excel."""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutti.errors import TaskFileError
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.packed import unpacked_name
from tutti.tasks.layouts.table import Table

Write = Callable[..., str]
CSV = b"\xef\xbb\xbfid,text,label\n7,good,1\n9,\xe5\xa5\xbd,0\n"
ROWS = [["7", "good", "1"], ["9", "好", "0"]]


def archive(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return packed.getvalue()


def parquet() -> bytes:
    packed = io.BytesIO()
    pq.write_table(pa.table({"id": [7, 9], "text": ["good", "好"], "label": ["1", "0"]}), packed)
    return packed.getvalue()


def workbook(*rows: list[Any], sheets: int = 1) -> bytes:
    book, packed = openpyxl.Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    for _ in range(sheets - 1):
        book.create_sheet()
    book.save(packed)
    return packed.getvalue()


BOOK = workbook(["id", "text", "label", None], [], [7, "good", 1], ["9", "好", "0"])


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (gzip.compress(CSV, mtime=0), "rows.csv.gz"),
        (gzip.compress(CSV, mtime=0), "rows.csv"),
        (gzip.compress(CSV.replace(b",", b"\t"), mtime=0), "rows.TSV.GZ"),
        (
            gzip.compress(
                b'{"id": 7, "text": "good", "label": 1}\n{"id": 9, "text": "\xe5\xa5\xbd", "label": 0}', mtime=0
            ),
            "a.jsonl.gz",
        ),
        (gzip.compress(parquet(), mtime=0), "rows.parquet.gz"),
        (archive(**{"rows.csv": CSV}), "rows.csv.zip"),
        (archive(**{"some/rows.csv": CSV, "__MACOSX/some/._rows.csv": b"x", "some/.DS_Store": b""}), "any.zip"),
        (archive(rows=CSV), "rows.csv.zip"),
        (BOOK, "rows.xlsx"),
        (BOOK, "rows.csv"),
        (archive(**{"rows.xlsx": BOOK}), "rows.zip"),
    ],
)
def test_a_packed_table_is_read_as_what_it_holds(write: Write, content: bytes, name: str) -> None:
    source, table = write(content, name), Table(id="id")
    assert table.read(source, labelled=True).to_numpy().tolist() == ROWS
    assert Table().read(source, labelled=False)["id"].tolist() == ["7", "9"]
    assert [block["text"].tolist() for block in Table().blocks(source, rows=1)] == [["good"], ["好"]]
    assert table.notices(source) == ()


def test_a_packed_file_of_a_layout_without_header_is_read_too(write: Write) -> None:
    source = write(gzip.compress(b"7\tgood\t1\n", mtime=0), "rows.tsv.gz")
    assert Competition().read(source, labelled=True).to_numpy().tolist() == [["7", "good", "1"]]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (
            gzip.compress(CSV * 99, mtime=0)[:-40],
            "rows.csv.gz",
            "must be a gzip file that can be unpacked; got .*; pack it again",
        ),
        (
            archive(**{"a.csv": CSV, "b.csv": CSV}),
            "rows.zip",
            "must hold one file; got 2 files: a.csv, b.csv; unpack it",
        ),
        (archive(), "rows.csv.zip", "must"),
        (archive(**{"a.txt": CSV}), "rows.zip", "got '.txt', unpacked to a.txt; rename"),
        (gzip.compress(b"a\0b", mtime=0), "rows.csv.gz", "must be a text file; got a binary file"),
        (
            b"\xd0\xcf\x11\xe0",
            "rows.xlsx",
            "must be a workbook of Excel; got File is not a zip file; save it as .xlsx without",
        ),
        (workbook(["text"], ["a", "b"]), "rows.xlsx", "row 2 must have at most 1 cells, like the header; got 2"),
        (workbook(["text", "text"], ["a", "b"]), "rows.xlsx", "columns of different names; got text twice"),
        (workbook(["text"]), "rows.xlsx", "must have at least one row; got none"),
        (workbook(), "rows.xlsx", "must have the column 'text'"),
    ],
)
def test_what_cannot_be_unpacked_is_one_fault(write: Write, content: bytes, name: str, message: str) -> None:
    source = write(content, name)
    for read in (lambda: Table().read(source, labelled=False), lambda: [*Table().blocks(source, rows=1)]):
        with pytest.raises(TaskFileError, match=message) as caught:
            read()
        assert len(caught.value.faults) == 1


def test_cells_of_a_workbook_are_read_as_they_are_seen(write: Write) -> None:
    rows = [["text", "label"], ["a\nb", 1.5], ["=1+1", True], [None, None], ["007", date(2020, 1, 2)]]
    read = Table().read(write(workbook(*rows), "rows.xlsx"), labelled=False)
    assert read["text"].tolist() == ["a\nb", "", "007"]  # a formula that no Excel has computed has no value
    with pytest.raises(TaskFileError, match="row 3 must have a text that is not empty"):
        Table().read(write(workbook(*rows), "rows.xlsx"), labelled=True)


def test_further_sheets_of_a_workbook_are_told(write: Write) -> None:
    source = write(workbook(["text"], ["a"], sheets=3), "rows.xlsx")
    assert Table().notices(source) == (f"{source}: of its 3 sheets only the first is read, 'Sheet'",)


def test_a_workbook_without_its_package_says_how_to_install_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(TaskFileError, match=r"the package openpyxl; got no such package; install it with `pip install"):
        Table().read(write(BOOK, "rows.xlsx"), labelled=True)


def test_only_the_suffixes_of_packing_are_taken_off() -> None:
    names = ["a.csv.gz", "a.csv.ZIP", "a.csv", "gz", str(Path("b.gz") / "a")]
    assert [unpacked_name(name) for name in names] == ["a.csv", "a.csv", "a.csv", "gz", "b.gz/a"]
