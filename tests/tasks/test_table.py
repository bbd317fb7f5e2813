from __future__ import annotations

import csv
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas import DataFrame

from tutti.errors import TaskFileError
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.layouts.table import Table, column_names
from tutti.tasks.number_text import parse_number

Write = Callable[..., str]

HARD = ['say "hi", you', "line\nfeed", "NA", "a\u2028b", "carriage\rreturn", "back\\slash\r\n", " spaces ", "好"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize("columns", [Table(id="key"), Table(id="key", text="a", text_b="b", label="y")])
def test_rows_that_are_written_are_read_back_unchanged(tmp_path: Path, suffix: str, columns: Table) -> None:
    rows = DataFrame({"id": [f"{n:03}" for n in range(len(HARD))], "text": HARD}, dtype="str")
    if columns.text_b:
        rows["text_b"] = HARD[::-1]
    rows["label"] = ["None", "null", "1.0", "01", "1", "true", "nan", "N/A"]
    path = tmp_path / f"rows{suffix}"
    columns.write(rows, path)
    assert columns.read(str(path), labelled=True).to_numpy().tolist() == rows.to_numpy().tolist()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_without_an_id_column_rows_are_numbered_from_zero(tmp_path: Path, suffix: str) -> None:
    rows = DataFrame({"id": ["x", "y"], "text": ["a", "b"], "label": ["1", "0"]})
    Table().write(rows, tmp_path / f"rows{suffix}")
    assert Table().read(str(tmp_path / f"rows{suffix}"), labelled=True)["id"].tolist() == ["0", "1"]


@pytest.mark.parametrize(
    ("file", "content"),
    [("a.csv", "id,text\n907,a\n14,b\n"), ("a.jsonl", '{"id": 907, "text": "a"}\n{"id": 14, "text": "b"}\n')],
)
def test_rows_to_predict_have_the_ids_of_the_column_id_though_nothing_names_it(write, file, content):
    source = write(content, file)
    assert Table().read(source, labelled=False)["id"].tolist() == ["907", "14"]
    assert Table(text="id").read(source, labelled=False)["id"].tolist() == ["0", "1"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("a.csv", "id,text\n1,a\n1,b\n"),
        ("a.csv", "id,text\n1,a\n,b\n"),
        ("a.jsonl", '{"id": 7, "text": "a"}\n{"text": "b"}\n'),
        ("a.jsonl", '{"id": [7], "text": "a"}\n{"id": [8], "text": "b"}\n'),
    ],
)
def test_rows_to_predict_whose_column_id_has_no_ids_of_their_own_are_named(write, file, content):
    """Numbers in their place would make a submission of other rows."""
    with pytest.raises(TaskFileError, match=r"line [1-3] must have (an id|the key 'id'|a text or number in 'id')"):
        Table().read(write(content, file), labelled=False)


def test_only_rows_to_predict_need_the_id_column(write: Write) -> None:
    source = write("text,label\na,1\nb,0\n", "rows.csv")
    assert Table(id="key").read(source, labelled=True)["id"].tolist() == ["0", "1"]
    with pytest.raises(TaskFileError, match=r"must have the column 'key' \(columns.id\)"):
        Table(id="key").read(source, labelled=False)


def test_numbers_are_read_as_they_are_written(write: Write, tmp_path: Path) -> None:
    lines = write('{"id": 7, "text": "a", "label": 108}\n', "rows.jsonl")
    assert Table(id="id").read(lines, labelled=True).to_numpy().tolist() == [["7", "a", "108"]]
    pq.write_table(pa.table({"id": [7], "text": ["a"], "label": [108]}), tmp_path / "rows.parquet")
    read = Table(id="id").read(str(tmp_path / "rows.parquet"), labelled=True)
    assert read.to_numpy().tolist() == [["7", "a", "108"]]


def test_columns_without_a_name_as_excel_writes_them_are_passed_over(write: Write) -> None:
    source = write("text,label,,\na,1,,\n", "rows.csv")
    assert Table().read(source, labelled=True).to_numpy().tolist() == [["0", "a", "1"]]


def test_every_missing_column_is_named_with_the_nearest_one(write: Write) -> None:
    with pytest.raises(TaskFileError) as caught:
        Table(text="sentence").read(write("sentense,lable\na,1\n", "rows.csv"), labelled=True)
    assert [fault.remedy for fault in caught.value.faults] == [
        "did you mean 'sentense'? Correct the name",
        "did you mean 'lable'? Correct the name",
    ]
    assert "must have the column 'sentence' (columns.text); got the columns sentense, lable" in str(caught.value)


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ";"), (".csv", "\t"), (".csv", "|"), (".tsv", ",")])
def test_another_separator_is_read_where_it_makes_the_named_columns_and_told(write, suffix, separator):
    rows = [["id", '"Title, short"', "text", "label"], ["7", "t", '"a, b; c\td|e"', "1"], ["9", "t", '"""f"""', "0"]]
    source = write("\ufeff" + "".join(separator.join(row) + "\r\n" for row in rows), f"rows{suffix}")
    assert Table().read(source, labelled=True).to_numpy().tolist() == [["0", "a, b; c\td|e", "1"], ["1", '"f"', "0"]]
    assert Table().read(source, labelled=False)["id"].tolist() == ["7", "9"]
    assert [*Table().blocks(source, rows=1)][1]["text"].tolist() == ['"f"']
    assert re.search(r"its columns are separated by a \w", Table().notices(source)[0])


def test_quoted_cells_of_a_tab_separated_file_are_told_and_read_so_only_where_its_header_is_quoted(write):
    row = '"say ""hi"" now"'
    source = write(f'text\tlabel\n{row}\t1\n"a" or "b"\t0\n""\t1\n', "rows.tsv")
    assert Table().read(source, labelled=False)["text"].tolist() == [row, '"a" or "b"', '""']
    [notice] = Table().notices(source)
    assert "1 row has cells quoted as in a CSV file, whose quotation marks are read as text" in notice
    source = write(f'"text"\t"label"\n{row}\t"1"\n', "all.tsv")
    assert Table().read(source, labelled=True).to_numpy().tolist() == [["0", 'say "hi" now', "1"]]
    assert "named in quotation marks" in Table().notices(source)[0]
    assert Table().notices(write('text\tlabel\n"a" or "b"\t0\n', "plain.tsv")) == ()


def test_a_separator_that_the_named_columns_do_not_need_is_part_of_a_name(write: Write) -> None:
    source = write("text;label,text,label\nx,a;b,1\n", "rows.csv")
    assert Table().read(source, labelled=True).to_numpy().tolist() == [["0", "a;b", "1"]]
    assert Table().notices(source) == ()


def test_a_missing_column_is_told_by_the_columns_that_another_separator_makes(write: Write) -> None:
    with pytest.raises(TaskFileError, match=r"the column 'text' .*; got the columns id, txt; did you mean 'txt'"):
        Table().read(write("id;txt\n1;a, b\n", "rows.csv"), labelled=False)
    with pytest.raises(TaskFileError, match=r"line 2 must have 2 columns like the header; got 3; quote .* a semicolon"):
        Table().read(write("id;text\n1;a; b\n", "rows.csv"), labelled=False)


@pytest.mark.parametrize("block", [None, 1, 2])
def test_a_json_row_without_a_key_that_others_have_is_named_and_null_is_an_empty_text(write, block):
    def read(source: str) -> list[str]:
        blocks = [Table().read(source, labelled=False)] if block is None else Table().blocks(source, rows=block)
        return [text for rows in blocks for text in rows["text"]]

    assert read(write('{"text": "a"}\n{"text": null}\n', "null.jsonl")) == ["a", ""]
    with pytest.raises(
        TaskFileError, match=r"line 2 must have the key 'text' like other rows; got id, txt; did you mean"
    ):
        read(write('{"id": 0, "text": "a"}\n{"id": 1, "txt": "b"}\n', "rows.jsonl"))


def test_a_json_row_without_a_second_text_is_not_told_to_rename_its_first(write: Write) -> None:
    source = write('{"text": "a", "text_b": "b"}\n{"text": "c"}\n', "rows.jsonl")
    with pytest.raises(TaskFileError, match=r"the key 'text_b' like other rows; got text; write the key, with null"):
        Table(text_b="text_b").read(source, labelled=False)


def test_json_rows_with_keys_of_their_own_cost_no_memory_for_each_others_keys(write: Write) -> None:
    count = 3000  # a cell for each row and key would take 72 MB
    lines = (json.dumps({"text": "a", "label": "1", f"of {row}": 0}) + "\n" for row in range(count))
    source = write("".join(lines), "rows.jsonl")
    tracemalloc.start()
    try:
        assert len(Table().read(source, labelled=True)) == count
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_an_empty_cell_of_a_table_with_one_column_is_a_row(write: Write, suffix: str) -> None:
    source = write("text\nfirst\n\nthird\n\n", f"rows{suffix}")
    expected = [["0", "first"], ["1", ""], ["2", "third"]]
    assert Table().read(source, labelled=False).to_numpy().tolist() == expected
    blocks = [block.to_numpy().tolist() for block in Table().blocks(source, rows=1)]
    assert [row for block in blocks for row in block] == expected


def test_a_csv_row_with_another_count_of_columns_is_named_by_the_line_it_starts_on(write: Write) -> None:
    with pytest.raises(TaskFileError) as caught:
        Table().read(write('text,label\n"a\nb",1\nc\nd,1,2\n', "rows.csv"), labelled=True)
    assert [(fault.what.rsplit(", ")[-1], fault.got) for fault in caught.value.faults] == [
        ("line 4", "1"),
        ("line 5", "3"),
    ]


def test_a_quote_that_never_closes_is_refused(write: Write) -> None:
    with pytest.raises(TaskFileError, match="line 2 must be CSV as RFC 4180 has it"):
        Table().read(write('text,label\n"a,1\nb,1\n', "rows.csv"), labelled=True)


@pytest.mark.parametrize("content", ["text,label\na\rb,1\n", "text,label\n\na,1\rb,2\n", "text,label\ra,1\rb,2\r"])
def test_a_carriage_return_outside_quotes_is_refused_and_splits_no_row(write: Write, content: str) -> None:
    with pytest.raises(TaskFileError, match=r"line [123] must be CSV .* got a carriage return outside quotes; quote"):
        Table().read(write(content, "rows.csv"), labelled=False)


def test_quoted_carriage_returns_and_all_usual_line_ends_are_read(write: Write) -> None:
    content = 'text,label\r\n"a\rb",1\r\n"c\r\nd",2\n\r\n"e\r",3'
    source = write(content, "rows.csv")
    assert Table().read(source, labelled=True)["text"].tolist() == ["a\rb", "c\r\nd", "e\r"]
    with pytest.raises(TaskFileError, match="line 6 must have 2 columns"):
        Table().read(write(content.removesuffix(",3"), "rows.csv"), labelled=True)


def test_a_line_that_is_no_json_object_is_named(write: Write) -> None:
    with pytest.raises(TaskFileError) as caught:
        Table().read(write('{"text": "a"}\n{"text"\n["b"]\n', "rows.jsonl"), labelled=False)
    assert [fault.what.rsplit(", ")[-1] for fault in caught.value.faults] == ["line 2", "line 3"]


def test_a_json_row_with_a_key_twice_is_named_as_one_of_the_two_values_would_be_lost(write: Write) -> None:
    source = write('{"text": "a"}\n{"text": "b", "n": 1, "text": "c"}\n', "rows.jsonl")
    with pytest.raises(TaskFileError, match=r"be one JSON object; got the key 'text' twice; write .* each key once"):
        Table().read(source, labelled=False)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_of_objects_is_read_as_json_lines_are(write: Write, indent: int | None) -> None:
    source = write(" " + json.dumps([{"text": "a", "id": 7}, {"text": None, "id": 8}], indent=indent), "rows.json")
    assert Table().read(source, labelled=False).to_numpy().tolist() == [["7", "a"], ["8", ""]]
    assert [block["text"].tolist() for block in Table().blocks(source, rows=1)] == [["a"], [""]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[\n {"text": "a"},\n {"text": "b",}\n]', r"or one array of objects; got .* line 3 column"),
        ('[{"text": "a"}, "b"]', "row 2 must be one JSON object; got a str; write each row as an object"),
        ('[{"text": "a"}, {"txt": "b"}]', "row 2 must have the key 'text' like other rows"),
        ("[]", "must have at least one row; got none"),
        (
            '{\n "data": [\n {"text": "a"}\n ]\n}',
            "got one object, with the keys 'data'; write the array",
        ),
        (
            '{"text": {"0": "a", "1": "b"}, "label": {"0": 1, "1": 2}}',
            r"keys 'text', 'label'; .* \(pandas: orient='rec",
        ),
    ],
)
def test_json_that_is_neither_lines_nor_an_array_is_one_fault(write: Write, content: str, message: str) -> None:
    with pytest.raises(TaskFileError, match=message) as caught:
        Table().read(write(content, "rows.json"), labelled=False)
    assert len(caught.value.faults) == 1


def test_missing_and_unfit_json_values_are_named(write: Write) -> None:
    lines = [
        {"text": None, "label": 1},
        {"text": "", "label": 1},
        {"text": ["a"], "label": 1},
        {"text": "\ud83d", "label": 1},
    ]
    source = write("".join(json.dumps(line) + "\n" for line in lines), "rows.jsonl")
    with pytest.raises(TaskFileError) as caught:
        Table().read(source, labelled=True)
    assert sorted((fault.what.rsplit(", ")[-1], fault.got) for fault in caught.value.faults) == [
        ("line 1", "an empty one"),
        ("line 2", "an empty one"),
        ("line 3", "a list"),
        ("line 4", "half of a surrogate pair"),
    ]


@pytest.mark.parametrize("good", ["3", "-0.5", "+2.", ".5", "1e-3", "1E+2", " 4.25 "])
def test_a_number_may_be_written_in_all_usual_ways(write: Write, good: str) -> None:
    source = write(f"text,label\na,{good}\n", "rows.csv")
    assert Table().read(source, labelled=True, check=KINDS["value"].cell_fault)["label"].tolist() == [good.strip()]
    assert parse_number(good) == np.float32(float(good))


@pytest.mark.parametrize("bad", ["yes", "nan", "inf", "-Infinity", "1_000", "1e39", '"3,8"', "0x10", "٣", "1 2", "--1"])
def test_a_label_that_is_no_number_is_named_where_numbers_are_asked_for(write: Write, bad: str) -> None:
    source = write(f"text,label\na,1\nb,{bad}\n", "rows.csv")
    assert Table().read(source, labelled=True)["label"].tolist()[0] == "1"
    with pytest.raises(TaskFileError, match="line 3 must have a number as its label") as caught:
        Table().read(source, labelled=True, check=KINDS["value"].cell_fault)
    assert [fault.got for fault in caught.value.faults] == [repr(bad.strip('"'))]


def test_an_empty_label_is_one_fault_where_numbers_are_asked_for(write: Write) -> None:
    with pytest.raises(TaskFileError, match="a label that is not empty") as caught:
        Table().read(write("text,label\na,\n", "rows.csv"), labelled=True, check=KINDS["value"].cell_fault)
    assert len(caught.value.faults) == 1


def test_numbers_of_json_and_parquet_are_taken_as_they_are(write: Write, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "label": pa.array([3.8, 4], pa.float32())}), tmp_path / "x.parquet")
    for source in (
        write('{"text": "a", "label": 3.8}\n{"text": "b", "label": 4}\n', "rows.jsonl"),
        str(tmp_path / "x.parquet"),
    ):
        labels = Table().read(source, labelled=True, check=KINDS["value"].cell_fault)["label"]
        assert [parse_number(label) for label in labels] == [np.float32(3.8), np.float32(4)]


def test_a_damaged_parquet_file_is_refused(write: Write) -> None:
    with pytest.raises(TaskFileError, match="must be a Parquet file"):
        Table().read(write(b"PAR1 no more", "rows.parquet"), labelled=True)


def test_parquet_values_that_python_cannot_hold_are_refused_only_where_they_are_read(tmp_path: Path) -> None:
    no_text = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], dtype=np.int32)), pa.py_buffer(b"\xff"))
    year_30000 = pa.array([10_250_000], pa.date32())
    pq.write_table(pa.table({"text": ["a"], "when": year_30000, "bytes": no_text}), tmp_path / "x.parquet")
    source = str(tmp_path / "x.parquet")
    assert Table().read(source, labelled=False)["text"].tolist() == ["a"]
    assert column_names(source) == ["text", "when", "bytes"]
    for column in ("when", "bytes"):
        with pytest.raises(TaskFileError, match="must be a Parquet file"):
            Table(text=column).read(source, labelled=False)


def test_two_columns_of_one_name_are_refused(write: Write, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"]), tmp_path / "x.parquet")
    for source in (write("text,text\na,b\n", "rows.csv"), str(tmp_path / "x.parquet")):
        with pytest.raises(TaskFileError, match="must have columns of different names; got text twice"):
            Table().read(source, labelled=False)


@pytest.mark.parametrize("value", ["[" * 200_000 + "]" * 200_000, "1" * 5_000])
def test_json_that_python_cannot_hold_is_named_by_its_line(tmp_path: Path, value: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "label": "x"}}\n{{"text": {value}}}\n', encoding="utf-8")
    with pytest.raises(TaskFileError, match=r"a\.jsonl, line 2 must be one JSON object"):
        Table().read(str(tmp_path / "a.jsonl"), labelled=True)


def test_a_cell_of_any_length_is_read_and_the_csv_modules_limit_stays(tmp_path: Path) -> None:
    limit, long = csv.field_size_limit(), "word " * 40_000 + "end"
    (tmp_path / "a.csv").write_text(f"text,label\n{long},x\nb,y\n", encoding="utf-8")
    assert Table().read(str(tmp_path / "a.csv"), labelled=True)["text"].tolist() == [long, "b"]
    (tmp_path / "b.csv").write_text('text,label\n"a,x\n', encoding="utf-8")
    with pytest.raises(TaskFileError):
        Table().read(str(tmp_path / "b.csv"), labelled=True)
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_not_a_number_is_an_empty_cell(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": ["a", "b"], "label": [1.0, float("nan")]}), source)
    else:
        source.write_text('{"text": "a", "label": 1.0}\n{"text": "b", "label": NaN}\n')
    with pytest.raises(TaskFileError, match="2 must have a label that is not empty"):
        Table().read(str(source), labelled=True)
