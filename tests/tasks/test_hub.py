from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from tutti.errors import TaskFileError
from tutti.tasks.kinds.classes import ordered_classes
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.layouts.hub import Hub
from tutti.tasks.layouts.table import Table


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for data files; the test's own has a name that `datasets` would take for a split's."""
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def saved(folder: Path, texts: list[str], *, names: tuple[str, ...] = ("bad", "good")) -> Hub:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=[*names])})
    rows = {"text": texts, "label": [number % 2 for number in range(len(texts))]}
    train = datasets.Dataset.from_dict(rows, features=features)
    test = datasets.Dataset.from_dict({"text": ["c"], "label": [-1]}, features=features)
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(folder)
    return Hub(str(folder))


def test_class_labels_become_their_names(tmp_path: Path) -> None:
    rows = saved(tmp_path / "set", ["a", "b"]).read("train", labelled=True)
    assert rows.to_numpy().tolist() == [["0", "a", "bad"], ["1", "b", "good"]]


def test_classes_have_the_order_of_the_data_set_so_that_f1_is_that_of_its_second_one(tmp_path: Path) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["not_equivalent", "equivalent", "rest"])}
    )
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    datasets.DatasetDict({"train": data}).save_to_disk(tmp_path / "pairs")
    order = Hub(str(tmp_path / "pairs")).class_order("train")
    assert ordered_classes(["equivalent", "not_equivalent"], order) == ("not_equivalent", "equivalent")
    assert ordered_classes(["other", "equivalent", "a", "rest"], order) == ("equivalent", "rest", "a", "other")
    texts = datasets.Dataset.from_dict({"text": ["a"], "label": ["x"]})
    datasets.DatasetDict({"train": texts}).save_to_disk(tmp_path / "texts")
    assert Hub(str(tmp_path / "texts")).class_order("train") == ()


def test_numbers_of_a_regression_are_read_and_other_labels_named(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [3.8, 4.0]})
    datasets.DatasetDict({"train": data}).save_to_disk(tmp_path / "scores")
    rows = Hub(str(tmp_path / "scores")).read("train", labelled=True, check=KINDS["value"].cell_fault)
    assert rows["label"].tolist() == ["3.8", "4.0"]
    with pytest.raises(TaskFileError, match=r"row 1 must have a number as its label.*; got 'bad'"):
        saved(tmp_path / "set", ["a", "b"]).read("train", labelled=True, check=KINDS["value"].cell_fault)


def test_a_test_split_whose_labels_are_hidden_is_read_without_them(tmp_path: Path) -> None:
    assert saved(tmp_path / "set", ["a", "b"]).read("test", labelled=False).to_numpy().tolist() == [["0", "c"]]


def test_hidden_labels_are_no_labels_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="row 1 must have a label that is not empty"):
        saved(tmp_path / "set", ["a", "b"]).read("test", labelled=True)


def test_a_folder_of_data_files_is_read_by_split(folder: Path) -> None:
    (folder / "train.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n')
    rows = Hub(str(folder)).read("train", labelled=True)
    assert rows.to_numpy().tolist() == [["0", "a", "x"], ["1", "b", "y"]]


def test_texts_of_json_that_the_library_takes_for_dates_are_refused_as_it_would_rewrite_them(folder: Path) -> None:
    (folder / "train.jsonl").write_text('{"text": "2020-01-01", "label": "x", "at": "2020-01-01"}\n')
    with pytest.raises(TaskFileError, match=r"column 'text' must hold texts; got dates; read the file by layout table"):
        Hub(str(folder)).read("train", labelled=True)
    (folder / "train.jsonl").write_text('{"text": "1 May", "label": "x", "at": "2020-01-01"}\n')
    assert Hub(str(folder)).read("train", labelled=True)["text"].tolist() == ["1 May"]


def test_the_hub_is_asked_once_for_what_it_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builders, builder_of = [], datasets.load_dataset_builder
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *given: builders.append(given) or builder_of(*given))
    (folder / "train.csv").write_text("text,label\na,x\n")
    layout = Hub(str(folder))
    layout.fingerprint("train")
    layout.read("train", labelled=True)
    assert builders == [(str(folder), None)]


def test_an_unknown_split_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="got the splits train, test; did you mean 'train'"):
        saved(tmp_path / "set", ["a"]).read("trian", labelled=True)


def test_an_unknown_split_of_data_files_is_a_task_file_error(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x\n")
    with pytest.raises(TaskFileError, match="check `dataset`, `subset` and the split's name"):
        Hub(str(tmp_path)).read("dev", labelled=True)


def test_a_saved_data_set_is_not_taken_for_a_subset_that_nothing_says_it_is(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", ["a", "b"]).dataset
    with pytest.raises(TaskFileError, match=r"without `subset`: .* one data set there; got 'cola'; take `subset` out"):
        Hub(folder, "cola").read("train", labelled=True)


def test_a_missing_column_names_those_there(tmp_path: Path) -> None:
    saved(tmp_path / "set", ["a"])
    with pytest.raises(
        TaskFileError, match=r"must have the column 'txt'.*got the columns text, label; did you mean 'text'"
    ):
        Hub(str(tmp_path / "set"), columns=Table(text="txt")).read("train", labelled=True)


def test_the_fingerprint_follows_the_rows_and_not_the_folder(tmp_path: Path) -> None:
    first = saved(tmp_path / "one", ["a", "b"]).fingerprint("train")
    assert saved(tmp_path / "two", ["a", "b"]).fingerprint("train") == first
    assert saved(tmp_path / "three", ["a", "c"]).fingerprint("train") != first
    assert saved(tmp_path / "four", ["a", "b"], names=("good", "bad")).fingerprint("train") != first


def test_written_rows_are_read_back_by_the_table_layout(tmp_path: Path) -> None:
    hub = saved(tmp_path / "set", ["a", "b"])
    rows = hub.read("train", labelled=True)
    hub.write(rows, tmp_path / "extra.jsonl")
    assert hub.columns.read(str(tmp_path / "extra.jsonl"), labelled=True).equals(rows)


def test_a_column_id_of_csv_files_that_nothing_names_is_no_id(folder: Path) -> None:
    (folder / "test.csv").write_text("id,text\n907,a\n14,b\n")
    assert Hub(str(folder)).read("test", labelled=False).to_numpy().tolist() == [["0", "a"], ["1", "b"]]


def test_cells_of_csv_files_are_read_as_they_are_written(folder: Path) -> None:
    (folder / "train.csv").write_text("id,text,label,votes\n000,fine,01,5\n001,1e3,02,6\n")
    (folder / "test.csv").write_text("id,text,votes\n007,None,\n008,null,\n009,NA,7\n")  # a column that is not read
    layout = Hub(str(folder), columns=Table(id="id"))
    assert layout.read("train", labelled=True).to_numpy().tolist() == [["000", "fine", "01"], ["001", "1e3", "02"]]
    assert layout.read("test", labelled=False).to_numpy().tolist() == [["007", "None"], ["008", "null"], ["009", "NA"]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.csv", "id,label,text\n0,x,fine\n1,y,hello, world\n"),  # pandas would cut the text
        ("train.csv", "id,label,text\n1,y,hello, world\n"),  # and shift all cells of such a file by a column
        ("train.tsv", "id\tlabel\ttext\n0\tx\n"),
    ],
)
def test_a_row_of_a_csv_file_with_another_number_of_cells_is_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    line, cells = content.count("\n"), 2 if name.endswith(".tsv") else 4
    with pytest.raises(TaskFileError, match=rf"{name}, line {line} must have 3 columns like the header; got {cells}"):
        Hub(str(folder), columns=Table(id="id")).read("train[:1]", labelled=False)


def test_lines_that_a_quotation_mark_joins_to_one_row_of_tab_separated_values_are_refused(folder: Path) -> None:
    (folder / "train.tsv").write_text('text\tlabel\n"two\nlines"\tx\n"a\tx\nb\tx\nc"\ty\n')
    with pytest.raises(
        TaskFileError, match=r"train\.tsv, line 4 must be one row; got several lines in quotes; use layout"
    ):
        Hub(str(folder)).read("train", labelled=True)


def test_a_file_that_is_not_utf_8_is_named_whatever_split_is_read(folder: Path) -> None:
    (folder / "train.csv").write_text("text,label\na,x\n")
    (folder / "test.csv").write_bytes("text,label\n你好,x\n".encode("gb18030"))
    with pytest.raises(TaskFileError, match=r"test\.csv, line 2 must be UTF-8; got byte 0xc4 at offset 11; save"):
        Hub(str(folder)).read("train", labelled=True)


@pytest.mark.parametrize(
    ("option", "content", "texts"),
    [
        ("encoding: gb18030", "text,label\n你好,x\n".encode("gb18030"), ["你好"]),
        ("nrows: 1", b"text,label\na,x\n2 rows\n", ["a"]),
        ("skipinitialspace: true", b'text,label\n "a, b", x\n', ["a, b"]),
    ],
)
def test_csv_files_are_read_as_the_data_set_s_card_says(folder: Path, option: str, content: bytes, texts: list) -> None:
    (folder / "train.csv").write_bytes(content)
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: a\n  data_files: train.csv\n  {option}\n---\n")
    assert Hub(str(folder)).read("train", labelled=True)["text"].tolist() == texts


def test_a_column_without_a_name_has_the_one_that_pandas_gives_it(folder: Path) -> None:
    (folder / "train.csv").write_text(",text,label\n5,a,x\n")
    assert Hub(str(folder), columns=Table(id="Unnamed: 0")).read("train", labelled=True)["id"].tolist() == ["5"]
