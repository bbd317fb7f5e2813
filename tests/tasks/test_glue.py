from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tutti.errors import TaskFileError
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.layouts.glue import Glue

Write = Callable[..., str]

MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    "\tsentence1\tsentence2"
)
TRAIN = {
    "CoLA": 'gj04\t1\t\tOne more.\ngj04\t0\t*\t"Two\n',
    "SST-2": 'sentence\tlabel\nOne more.\t1\n"Two\t0\n',
    "MRPC": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t5\t6\tOne more.\tb"\n0\t7\t8\t"Two\tb\n',
    "STS-B": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    '7\tg\tf\t2015\t0\tnone\tnone\tOne more.\tb"\t1\n8\tg\tf\t2015\t1\tnone\tnone\t"Two\tb\t0\n',
    "QQP": 'id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n7\t1\t2\tOne more.\tb"\t1\n8\t3\t4\t"Two\tb\t0\n',
    "MNLI": f"{MNLI}\tlabel1\tgold_label\n"
    '7\t31\t31n\tg\t( One )\t( b )\t(S)\t(S)\tOne more.\tb"\t1\t1\n'
    '8\t31\t31n\tg\t( Two )\t( b )\t(S)\t(S)\t"Two\tb\t0\t0\n',
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
    "QQP": 'id\tquestion1\tquestion2\n4\tOne more.\tb"\n9\t"Two\tb\n',
    "MNLI": f'{MNLI}\n4\t31\t31n\tg\t( One )\t( b )\t(S)\t(S)\tOne more.\tb"\n'
    '9\t31\t31n\tg\t( Two )\t( b )\t(S)\t(S)\t"Two\tb\n',
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


def test_mnli_s_dev_files_have_the_labels_of_five_annotators_more(write: Write) -> None:
    row = "7\t31\t31n\tg\t( One )\t( b )\t(S)\t(S)\tOne\tb\tneutral\tneutral\tentailment\t\t\tneutral\n"
    source = write(f"{MNLI}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n{row}")
    assert Glue("MNLI").read(source, labelled=True).to_numpy().tolist() == [["0", "One", "b", "neutral"]]


@pytest.mark.parametrize("repair", [False, True])
def test_a_model_of_mnli_predicts_the_diagnostic_set_too(write: Write, repair: bool) -> None:
    source, layout = write("index\tsentence1\tsentence2\n0\tOne\tb\n1\tTwo\t\n"), Glue("MNLI", repair)
    assert layout.read(source, labelled=False).to_numpy().tolist() == [["0", "One", "b"], ["1", "Two", ""]]
    blocks = [block.to_numpy().tolist() for block in layout.blocks(source, rows=1)]
    assert blocks == [[["0", "One", "b"]], [["1", "Two", ""]]]


def test_pseudo_labels_of_mnli_have_the_columns_of_its_training_file(write: Write, tmp_path: Path) -> None:
    rows = Glue("MNLI").read(write(TRAIN["MNLI"]), labelled=True)
    Glue("MNLI").write(rows, tmp_path / "again.tsv")
    head, first, _ = (tmp_path / "again.tsv").read_text().splitlines()
    assert head == f"{MNLI}\tlabel1\tgold_label"
    assert first == '0\t0\t0\t0\t\t\t\t\tOne more.\tb"\t1\t1'


QQP = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "7\t1\t2\tOne\tb\t1\n"
    '8\t3\t4\t"Two\n\n"\tb\t0\n'  # a line feed within a text
    "9\t5\t6\tThree\t\t0\n"  # no second text
    "10\t5\t6\tFour\n"  # incomplete
    "11\t7\t8\tFive\tb\t0\n"
)


def test_rows_that_line_feeds_broke_are_joined_and_rows_that_lack_a_text_or_a_column_are_dropped(write: Write) -> None:
    rows = Glue("QQP", repair=True).read(write(QQP), labelled=True)
    assert rows.to_numpy().tolist() == [["0", "One", "b", "1"], ["1", '"Two  "', "b", "0"], ["2", "Five", "b", "0"]]


def test_repair_drops_no_row_with_too_many_columns(write: Write) -> None:
    with pytest.raises(TaskFileError, match=r"line 2 must have 6 .*; got 7"):
        Glue("QQP", repair=True).read(write(QQP.replace("7\t1\t2", "7\t\t1\t2")), labelled=True)


def test_without_repair_broken_rows_and_rows_without_a_text_are_faults_that_name_the_key(write: Write) -> None:
    with pytest.raises(TaskFileError) as caught:
        Glue("QQP").read(write(QQP), labelled=True)
    message = str(caught.value)
    places = [fault.what.split(", line")[1] for fault in caught.value.faults]
    assert places == ["s 3, 4, 5 and 7", " 6"]
    assert "got 4, 1, 3; correct the line, or set cleaning.broken_rows where a text holds a line feed" in message
    assert "line 6 must have a text_b that is not empty" in message


def test_a_file_in_which_repair_finds_no_row_is_told_by_its_faults(write: Write) -> None:
    with pytest.raises(TaskFileError, match=r"line 1 must have 4 .*, also once lines are joined; got 3"):
        Glue("CoLA", repair=True).read(write("a\tb\tc\n"), labelled=True)
    with pytest.raises(TaskFileError, match="must have at least one row"):
        Glue("QQP", repair=True).read(write(QQP.split("\n")[0]), labelled=True)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_rows_to_predict_are_joined_across_blocks_and_never_dropped(write: Write, rows: int) -> None:
    source = write("id\tquestion1\tquestion2\n0\tOne\n more\tb\n1\tTwo\tb\nb\n2\tThree\t\n")
    blocks = [row for block in Glue("QQP", repair=True).blocks(source, rows=rows) for row in block.to_numpy().tolist()]
    assert blocks == [["0", "One  more", "b"], ["1", "Two", "b b"], ["2", "Three", ""]]
    assert Glue("QQP", repair=True).read(source, labelled=False).to_numpy().tolist() == blocks
    broken = write("id\tquestion1\tquestion2\n0\tOne\n1\tTwo\tb\n")
    with pytest.raises(TaskFileError, match=r"line 2 must have 3 .*; got 2"):
        list(Glue("QQP", repair=True).blocks(broken, rows=rows))


@pytest.mark.parametrize("kind", TRAIN)
def test_repair_changes_no_row_of_a_sound_file(write: Write, kind: str) -> None:
    for content, labelled in ((TRAIN[kind], True), (TEST[kind], False)):
        source = write(content)
        assert (
            Glue(kind, repair=True).read(source, labelled=labelled).equals(Glue(kind).read(source, labelled=labelled))
        )


def test_a_score_of_sts_b_that_is_no_number_is_named_by_its_line(write: Write) -> None:
    source = write(TRAIN["STS-B"].replace("\t0\n", "\tn/a\n"))
    with pytest.raises(TaskFileError, match=r"rows.tsv, line 3 must have a number as its label.*; got 'n/a'; correct"):
        Glue("STS-B").read(source, labelled=True, check=KINDS["value"].cell_fault)


@pytest.mark.parametrize("kind", ["SST-2", "MRPC", "QQP", "MNLI"])
def test_a_test_file_in_place_of_a_training_file_is_told_by_its_header(write: Write, kind: str) -> None:
    with pytest.raises(TaskFileError, match=f"line 1 must be the header of GLUE's {kind} train and dev files"):
        Glue(kind).read(write(TEST[kind]), labelled=True)


@pytest.mark.parametrize(
    ("kind", "train", "dev", "test"),
    [("CoLA", 8551, 527, 516), ("SST-2", 6920, 872, 1821), ("MRPC", 3668, 408, 1725), ("STS-B", 3000, 750, 2000)],
)
def test_the_real_files_lose_and_merge_no_row(shared_data: Path, kind: str, train: int, dev: int, test: int) -> None:
    folder = shared_data / "glue" / kind
    for name, count in (("train", train), ("dev", dev), ("test", test)):
        check = KINDS["value"].cell_fault if kind == "STS-B" else None
        rows = Glue(kind).read(str(folder / f"{name}.tsv"), labelled=name != "test", check=check)
        assert len(rows) == count
        lines = (folder / f"{name}.tsv").read_bytes().decode("utf-8-sig").split("\n")[:-1][-count:]
        texts = rows[[column for column in ("text", "text_b") if column in rows]].itertuples(index=False)
        for line, text in zip(lines, texts, strict=True):
            assert set(text) <= set(line.split("\t"))


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\n\n"])
def test_a_file_of_a_byte_order_mark_alone_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sst2.tsv").write_bytes(content)
    with pytest.raises(
        TaskFileError, match=r"sst2\.tsv must have at least one row; got an empty file, or white space alone"
    ):
        Glue("SST-2").read(str(tmp_path / "sst2.tsv"), labelled=True)
