from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tutti.errors import TaskFileError
from tutti.tasks.layouts.glue import Glue

Write = Callable[..., str]

TRAIN = {
    "CoLA": 'gj04\t1\t\tOne more.\ngj04\t0\t*\t"Two\n',
    "SST-2": 'sentence\tlabel\nOne more.\t1\n"Two\t0\n',
    "MRPC": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t5\t6\tOne more.\tb"\n0\t7\t8\t"Two\tb\n',
    "STS-B": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    '7\tg\tf\t2015\t0\tnone\tnone\tOne more.\tb"\t1\n8\tg\tf\t2015\t1\tnone\tnone\t"Two\tb\t0\n',
    "RTE": 'index\tsentence1\tsentence2\tlabel\n5\tOne more.\tb"\t1\n6\t"Two\tb\t0\n',
    "QNLI": 'index\tquestion\tsentence\tlabel\n5\tOne more.\tb"\t1\n6\t"Two\tb\t0\n',
    "WNLI": 'index\tsentence1\tsentence2\tlabel\n5\tOne more.\tb"\t1\n6\t"Two\tb\t0\n',
}
TEST = {
    "CoLA": 'index\tsentence\n4\tOne more.\n9\t"Two\n',
    "SST-2": 'index\tsentence\n4\tOne more.\n9\t"Two\n',
    "MRPC": '\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String\n4\t5\t6\tOne more.\tb"\n9\t7\t8\t"Two\tb\n',
    "STS-B": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\n"
    '4\tg\tf\t2015\t0\tnone\tnone\tOne more.\tb"\n9\tg\tf\t2015\t1\tnone\tnone\t"Two\tb\n',
    "RTE": 'index\tsentence1\tsentence2\n4\tOne more.\tb"\n9\t"Two\tb\n',
    "QNLI": 'index\tquestion\tsentence\n4\tOne more.\tb"\n9\t"Two\tb\n',
    "WNLI": 'index\tsentence1\tsentence2\n4\tOne more.\tb"\n9\t"Two\tb\n',
}
SINGLE = ("CoLA", "SST-2")


@pytest.mark.parametrize("kind", TRAIN)
def test_training_rows_are_numbered_from_zero(write: Write, kind: str) -> None:
    rows = Glue(kind).read(write(TRAIN[kind]), labelled=True)
    assert rows["id"].tolist() == ["0", "1"]
    assert rows["text"].tolist() == ["One more.", '"Two']
    assert rows["label"].tolist() == ["1", "0"]
    assert list(rows) == ["id", "text", *([] if kind in SINGLE else ["text_b"]), "label"]
    assert Glue(kind).pair == (kind not in SINGLE)


@pytest.mark.parametrize("kind", TEST)
def test_test_rows_have_their_index_as_id(write: Write, kind: str) -> None:
    rows = Glue(kind).read(write(TEST[kind]), labelled=False)
    assert rows["id"].tolist() == ["4", "9"]
    assert rows["text"].tolist() == ["One more.", '"Two']
    assert "label" not in rows


@pytest.mark.parametrize("kind", TRAIN)
def test_rows_that_are_written_are_read_back_unchanged(write: Write, tmp_path: Path, kind: str) -> None:
    rows = Glue(kind).read(write(TRAIN[kind]), labelled=True)
    Glue(kind).write(rows, tmp_path / "again.tsv")
    assert Glue(kind).read(str(tmp_path / "again.tsv"), labelled=True).equals(rows)


def test_a_file_may_name_every_kind_that_there_is() -> None:
    from typing import get_args

    from tutti.config.study import GlueKind

    assert set(get_args(GlueKind)) == set(TRAIN) == set(TEST)
    assert [Glue(kind).pair for kind in get_args(GlueKind)] == [kind not in SINGLE for kind in get_args(GlueKind)]


def test_a_score_of_sts_b_that_is_no_number_is_named_by_its_line(write: Write) -> None:
    source = write(TRAIN["STS-B"].replace("\t0\n", "\tn/a\n"))
    with pytest.raises(TaskFileError, match=r"rows.tsv, line 3 must have a number as its label.*; got 'n/a'; correct"):
        Glue("STS-B").read(source, labelled=True, numbers=True)


@pytest.mark.parametrize("kind", ["SST-2", "MRPC"])
def test_a_test_file_in_place_of_a_training_file_is_told_by_its_header(write: Write, kind: str) -> None:
    with pytest.raises(TaskFileError, match=f"line 1 must be the header of GLUE's {kind} train and dev files"):
        Glue(kind).read(write(TEST[kind]), labelled=True)


def test_a_file_of_a_header_alone_has_no_rows(write: Write) -> None:
    with pytest.raises(TaskFileError, match="must have at least one row"):
        Glue("SST-2").read(write("sentence\tlabel\n"), labelled=True)


def test_a_fault_names_the_line_of_the_file(write: Write) -> None:
    with pytest.raises(TaskFileError, match="line 3 must have 2 tab-separated columns"):
        Glue("SST-2").read(write("sentence\tlabel\na\t1\nb\n"), labelled=True)


@pytest.mark.parametrize(
    ("kind", "train", "dev", "test"),
    [("CoLA", 8551, 527, 516), ("SST-2", 6920, 872, 1821), ("MRPC", 3668, 408, 1725), ("STS-B", 3000, 750, 2000)],
)
def test_the_real_files_lose_and_merge_no_row(shared_data: Path, kind: str, train: int, dev: int, test: int) -> None:
    folder = shared_data / "glue" / kind
    for name, count in (("train", train), ("dev", dev), ("test", test)):
        rows = Glue(kind).read(str(folder / f"{name}.tsv"), labelled=name != "test", numbers=kind == "STS-B")
        assert len(rows) == count
        lines = (folder / f"{name}.tsv").read_bytes().decode("utf-8-sig").split("\n")[:-1][-count:]
        texts = rows[[column for column in ("text", "text_b") if column in rows]].itertuples(index=False)
        for line, text in zip(lines, texts, strict=True):
            assert set(text) <= set(line.split("\t"))


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\n\n"])
def test_a_file_of_a_byte_order_mark_alone_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sst2.tsv").write_bytes(content)
    with pytest.raises(TaskFileError, match=r"sst2\.tsv must have at least one row; got an empty file"):
        Glue("SST-2").read(str(tmp_path / "sst2.tsv"), labelled=True)
