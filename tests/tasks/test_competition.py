from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandas import DataFrame

from tutti.errors import Fault, TaskFileError
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.reading import raise_any

Write = Callable[..., str]

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\0"), min_size=1).filter(str.strip)
LABELS = TEXTS.map(str.strip)


def rows_of(source: str, *, labelled: bool = True, **options: bool) -> list[list[str]]:
    return Competition(**options).read(source, labelled=labelled).to_numpy().tolist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(texts=st.lists(st.tuples(TEXTS, TEXTS, LABELS), min_size=1, max_size=6), repair=st.booleans())
def test_rows_that_are_written_are_read_back_unchanged(tmp_path, texts, repair):
    rows = DataFrame(texts, columns=["text", "text_b", "label"], dtype="str")
    rows.insert(0, "id", [f"id{number}" for number in range(len(rows))])
    layout = Competition(pair=True, repair=repair)
    layout.write(rows, tmp_path / "rows.tsv")
    assert layout.read(str(tmp_path / "rows.tsv"), labelled=True).to_numpy().tolist() == rows.to_numpy().tolist()


def test_quotes_are_plain_characters(write: Write) -> None:
    source = write('0\t"open\t1\n1\tdone" he said\t0\n')
    assert rows_of(source) == [["0", '"open', "1"], ["1", 'done" he said', "0"]]


def test_only_a_line_feed_ends_a_row(write: Write) -> None:
    text = "a\u2028b\u0085c\x0bd\x0ce\x1cf\rg"
    assert rows_of(write(f"0\t{text}\t1\n")) == [["0", text, "1"]]


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_rows(write: Write) -> None:
    source = write("\ufeff0\ta\t1\r\n1\tb\t0\r\n\r\n")
    assert rows_of(source) == [["0", "a", "1"], ["1", "b", "0"]]


def test_the_last_line_needs_no_line_feed(write: Write) -> None:
    assert rows_of(write("0\ta\n1\tb"), labelled=False) == [["0", "a"], ["1", "b"]]


def test_spaces_around_labels_make_no_class(write: Write) -> None:
    assert [row[-1] for row in rows_of(write("0\ta\t1\n1\tb\t1 \n2\tc\t 1\n"))] == ["1", "1", "1"]


@pytest.mark.parametrize("header", ["qid\ttext\tlabel", "编号\t文本\t标签", "sid\tutterance\tLabel"])
def test_a_header_with_another_name_for_ids_is_known_by_its_other_names(write: Write, header: str) -> None:
    with pytest.raises(TaskFileError, match="line 1 must be a row: this layout has no header; got a header"):
        rows_of(write(f"{header}\n1\ta text\tyes\n"), labelled=True)


@pytest.mark.parametrize("first", ["", "no row"])
def test_a_first_line_that_is_no_row_is_named(write: Write, first: str) -> None:
    with pytest.raises(TaskFileError, match=r"line 1 must have 3 tab-separated columns"):
        rows_of(write(f"{first}\n1\tx\tyes\n2\ty\tyes\n"))


def test_a_class_that_is_called_as_a_column_may_be_is_one(write: Write) -> None:
    rows = [["0", "包装很好", "内容"], ["1", "故事", "内容"], ["2", "贵", "价格"]]
    assert rows_of(write("".join("\t".join(row) + "\n" for row in rows))) == rows


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("name", ["id", "ID", "index", "idx", "guid"])
def test_a_header_is_no_row(write: Write, name: str, labelled: bool) -> None:
    source = write(f"{name}\ttext\tlabel\n0\ta\t1\n" if labelled else f"{name}\ttext\n0\ta\n")
    with pytest.raises(TaskFileError, match=r"line 1 must be a row: this layout has no header; got a header; take"):
        rows_of(source, labelled=labelled)


@pytest.mark.parametrize(("rows", "labelled"), [("\n0\ta\n", False), ("0\ta\t1\n\n1\tb\t1\n", True)])
def test_an_empty_line_is_not_joined_to_the_row_after_it(write: Write, rows: str, labelled: bool) -> None:
    with pytest.raises(
        TaskFileError, match=r"line [12] must have [23] tab-separated columns .*; got 1; correct the line"
    ):
        rows_of(write(rows), labelled=labelled, repair=True)


def test_a_broken_text_of_a_labelled_row_is_joined_by_spaces(write: Write) -> None:
    source = write("0\tone\n\nthree\t1\n1\tb\t0\n")
    assert rows_of(source, repair=True) == [["0", "one  three", "1"], ["1", "b", "0"]]


def test_a_broken_text_at_the_end_of_an_unlabelled_row_goes_to_the_row_before(write: Write) -> None:
    source = write("0\tone\ntwo\nthree\n1\tb\n")
    assert rows_of(source, repair=True, labelled=False) == [["0", "one two three"], ["1", "b"]]


def test_both_texts_of_a_pair_can_be_mended(write: Write) -> None:
    source = write("0\ta\na\tb\nb\t1\n1\tc\td\t0\n")
    assert rows_of(source, repair=True, pair=True) == [["0", "a a", "b b", "1"], ["1", "c", "d", "0"]]
    unlabelled = write("0\ta\na\tb\nb\n1\tc\td\n")
    assert rows_of(unlabelled, repair=True, pair=True, labelled=False) == [["0", "a a", "b b"], ["1", "c", "d"]]


def test_mending_does_not_swallow_the_row_after_one_that_cannot_be_mended(write: Write) -> None:
    with pytest.raises(TaskFileError) as caught:
        rows_of(write("0\ta\n1\tb\t1\n"), repair=True)
    assert [(fault.what.rsplit(", ")[-1], fault.got) for fault in caught.value.faults] == [("line 1", "2")]


@pytest.mark.parametrize("stray", [" ", "foo"])
def test_a_stray_line_takes_nothing_from_the_row_after_it(write: Write, stray: str) -> None:
    with pytest.raises(TaskFileError) as caught:
        rows_of(write(f"0\ta\t1\n{stray}\n1\tb\t1\n"), repair=True)
    assert [(fault.what.rsplit(", ")[-1], fault.got) for fault in caught.value.faults] == [("line 2", "1")]


def test_a_line_with_too_few_columns_is_named_with_what_was_expected(write: Write) -> None:
    source = write("0\ta\t1\n1\tb\n2\tc\t0\td\n")
    with pytest.raises(TaskFileError) as caught:
        rows_of(source)
    assert str(caught.value).splitlines() == [
        f"{source}, line {line} must have 3 tab-separated columns (id, text, label); got {count}; "
        "correct the line, or set cleaning.broken_rows where a text holds a line feed."
        for line, count in ((2, 2), (3, 4))
    ]


def test_empty_texts_and_labels_are_all_reported_at_once(write: Write) -> None:
    with pytest.raises(TaskFileError) as caught:
        rows_of(write("0\t \t1\n1\tb\t\n1\tc\t1\n"))
    places = [(fault.what.rsplit(", ")[-1], fault.rule) for fault in caught.value.faults]
    assert places == [
        ("line 1", "have a text that is not empty"),
        ("line 2", "have a label that is not empty"),
    ]


def test_ids_of_rows_to_predict_are_their_own_and_those_of_labelled_rows_are_made_so(write: Write) -> None:
    with pytest.raises(TaskFileError) as caught:
        rows_of(write("1\tb\n1\tc\n"), labelled=False)
    assert caught.value.faults[0].got == "'1', which line 1 has already"
    assert rows_of(write("1\tb\tx\n1\tc\ty\n\td\tx\n")) == [["1", "b", "x"], ["1#2", "c", "y"], ["row 2", "d", "x"]]


def test_labels_that_are_no_numbers_are_told_with_the_other_faults(write: Write) -> None:
    source = write("0\ta\t4.5\n1\t \thigh\n2\tc\t\n")
    with pytest.raises(TaskFileError) as caught:
        Competition().read(source, labelled=True, check=KINDS["value"].cell_fault)
    assert [(fault.what.rsplit(", ")[-1], fault.got) for fault in caught.value.faults] == [
        ("line 2", "an empty one"),
        ("line 3", "an empty one"),
        ("line 2", "'high'"),
    ]


def test_rows_to_predict_may_have_an_empty_text(write: Write) -> None:
    assert rows_of(write("0\t\n1\tb\n"), labelled=False) == [["0", ""], ["1", "b"]]


def test_an_empty_id_of_a_row_to_predict_is_a_fault(write: Write) -> None:
    with pytest.raises(TaskFileError, match="line 1 must have an id that is not empty"):
        rows_of(write(" \ta\n1\tb\n"), labelled=False)


def test_a_fault_that_many_rows_have_is_told_once_with_its_count(write: Write) -> None:
    places = "lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 15 more"
    with pytest.raises(
        TaskFileError, match=rf"{places} must have a text that is not empty; got an empty one"
    ) as caught:
        rows_of(write("".join(f"{row}\t \t1\n" for row in range(25))))
    assert len(caught.value.faults) == 1
    source = write("".join(f"{row}\tx\t{'abcd'[row]}\n" for row in range(4)))
    with pytest.raises(TaskFileError, match=r"lines 1, 2, 3 and 4 must have a number .*; got 'a', 'b', 'c', \.\.\.;"):
        Competition().read(source, labelled=True, check=KINDS["value"].cell_fault)


def test_many_faults_are_cut_to_ten_and_counted() -> None:
    faults = [Fault(f"rows.tsv, line {n}", f"have a key {n}", "none", "write it") for n in range(25)]
    with pytest.raises(TaskFileError, match="got 15 more faults than the 10 shown") as caught:
        raise_any(faults, origin="rows.tsv")
    assert len(caught.value.faults) == 11


def test_a_missing_file_names_the_nearest_one(write: Write) -> None:
    source = write("0\ta\t1\n", "TNEWS_train.csv")
    with pytest.raises(TaskFileError, match=r"got no such file; did you mean 'TNEWS_train.csv'"):
        rows_of(source.replace("train", "trian"))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="must be a file; got a folder"):
        rows_of(str(tmp_path))


def test_a_zero_byte_in_a_text_is_told_apart_from_a_binary_file(write: Write) -> None:
    with pytest.raises(TaskFileError, match=r"got a zero byte at offset 250; take it out"):
        Competition().read(write(b"0\t" + b"a" * 248 + b"\0 b\tyes\n"), labelled=True)


def test_a_binary_file_is_named_as_such(write: Write) -> None:
    with pytest.raises(TaskFileError, match=r"got a binary file \(a zero byte at offset 3\)"):
        rows_of(write(b"PAR\x00\x01"))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_wrong_encoding_names_line_byte_and_offset(write: Write, mark: bytes) -> None:
    content = mark + b"0\tabc\t1\n1\t" + "好".encode("gb18030") + b"\t1\n"
    offset = content.index("好".encode("gb18030"))
    with pytest.raises(
        TaskFileError, match=rf"line 2 must be UTF-8; got byte 0xba at offset {offset}; set `encoding:`"
    ):
        rows_of(write(content))


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_a_file_without_rows_is_refused(write: Write, content: str) -> None:
    with pytest.raises(TaskFileError, match="must have at least one row"):
        rows_of(write(content))


def test_tabs_and_line_ends_of_a_text_are_written_as_spaces(tmp_path: Path) -> None:
    rows = DataFrame({"id": ["0"], "text": ["a\tb\nc"], "label": ["1\r"]})
    Competition().write(rows, tmp_path / "rows.tsv")
    assert Competition().read(str(tmp_path / "rows.tsv"), labelled=True).iloc[0].tolist() == ["0", "a b c", "1"]


@pytest.mark.parametrize(
    ("file", "count", "pair", "labelled"),
    [
        ("OCNLI_train.csv", 9985, True, True),
        ("OCNLI_test.csv", 2950, True, False),
        ("EMOTION_train.csv", 10606, False, True),
        ("EMOTION_test.csv", 3000, False, False),
        ("TNEWS_train.csv", 2283, False, True),
        ("TNEWS_test.csv", 2010, False, False),
        ("TNEWS_unlabeled.csv", 20000, False, False),
        ("round1/OCNLI_a.csv", 1500, True, False),
        ("round1/OCEMOTION_a.csv", 1500, False, False),
        ("round1/TNEWS_a.csv", 1500, False, False),
        ("round2/ocnli_test_B.csv", 1500, True, False),
        ("round2/ocemotion_test_B.csv", 1500, False, False),
        ("round2/tnews_test_B.csv", 1500, False, False),
    ],
)
def test_the_competition_files_lose_and_merge_no_row(shared_data, file, count, pair, labelled):
    path = shared_data / "tianchi" / file
    rows = rows_of(str(path), pair=pair, labelled=labelled)
    assert len(rows) == count
    assert "".join("\t".join(row) + "\n" for row in rows).encode() == path.read_bytes().replace(b"\r\n", b"\n")
    assert rows_of(str(path), pair=pair, labelled=labelled, repair=True) == rows


def test_a_path_that_the_system_refuses_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="be a readable file; got File name too long"):
        Competition(pair=False).read(str(tmp_path / ("x" * 300)), labelled=True)
