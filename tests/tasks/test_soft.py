"""Training rows with a probability for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutti.errors import TaskFileError
from tutti.tasks.layouts.soft import PROBABILITY, SoftLabels

CLASSES = ("a", 'b,"c"', "text")


def frame(rows: int = 4) -> pd.DataFrame:
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), rows).astype(np.float32)
    texts = {"id": [f"r{n}" for n in range(rows)], "text": [f"row {n}\t\n" for n in range(rows)]}
    return pd.DataFrame(texts | {PROBABILITY + name: probabilities[:, index] for index, name in enumerate(CLASSES)})


def put(path: Path, **columns: object) -> str:
    known = {"id": ["0", "1"], "text": ["x", "y"], "probabilities": [{"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 0.0}]}
    table = {name: values for name, values in (known | columns).items() if values is not None}
    pq.write_table(pa.table(table), path)
    return str(path)


@pytest.mark.parametrize("pair", [False, True])
def test_what_is_written_is_read_back_bit_for_bit_with_the_likeliest_class(tmp_path: Path, pair: bool) -> None:
    rows = frame().assign(**({"text_b": ["second"] * 4} if pair else {}))
    SoftLabels(pair).write(rows, tmp_path / "s.parquet")
    back = SoftLabels(pair).read(str(tmp_path / "s.parquet"), labelled=True)
    names = [PROBABILITY + name for name in CLASSES]
    assert back[names].to_numpy().dtype == np.float32
    pd.testing.assert_frame_equal(back[[*rows]], rows, check_dtype=False, check_exact=True)
    assert back["label"].tolist() == [CLASSES[index] for index in rows[names].to_numpy().argmax(axis=1)]


def test_a_file_that_others_wrote_with_doubles_is_read(tmp_path: Path) -> None:
    back = SoftLabels().read(put(tmp_path / "s.parquet"), labelled=True)
    assert back[PROBABILITY + "a"].tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"probabilities": None}, "must have the columns id, text, probabilities; got id, text; add probabilities"),
        ({"probabilities": [0.5, 0.5]}, "must have a float for each class in the struct probabilities; got .* double"),
        ({"probabilities": [{"a": 1.0}, {"a": 1.0}]}, "must have two classes or more"),
        ({"probabilities": [{"a": 0.5, "b": 0.6}, None]}, "row 1 must have probabilities .* sum to 1; got 0.5, 0.6"),
        ({"probabilities": [{"a": 0.5, "b": 0.5}, None]}, "row 2 must have probabilities .* got nan, nan"),
        ({"probabilities": [{"a": 1.5, "b": -0.5}] * 2}, "row 1 must have probabilities of at least 0"),
        (
            {"probabilities": [dict.fromkeys("abcdefghijkl", 0.5)] * 2},
            r"row 1 .*; got (0\.5, ){10}\.\.\.; correct the row",
        ),
        ({"text": ["x", None]}, "row 2 must have a text that is not empty"),
        ({"text": [1.5, float("nan")]}, "row 2 must have a text that is not empty"),
        ({"text": [b"x", b"y"]}, "must have texts or numbers in 'text'; got a column of the type binary"),
        ({"text": [["x"], ["y"]]}, "must have texts or numbers in 'text'; got a column of the type list"),
    ],
)
def test_a_row_or_column_that_is_no_soft_label_is_named(tmp_path: Path, columns: dict, message: str) -> None:
    with pytest.raises(TaskFileError, match=message):
        SoftLabels().read(put(tmp_path / "s.parquet", **columns), labelled=True)


def test_what_is_no_parquet_file_is_told_how_to_be_read(tmp_path: Path) -> None:
    (tmp_path / "more.tsv").write_text("0\ttext\tlabel\n")
    with pytest.raises(
        TaskFileError, match=r"more.tsv must be a Parquet file of soft labels; .*take out `labels: soft`"
    ):
        SoftLabels().read(str(tmp_path / "more.tsv"), labelled=True)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    file = put(tmp_path / "s.parquet")
    table = pq.read_table(file)
    pq.write_table(table.append_column("text", table["text"]), file)
    with pytest.raises(TaskFileError, match="must have columns of different names; got text twice"):
        SoftLabels().read(file, labelled=True)
