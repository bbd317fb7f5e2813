"""Tasks whose labels are numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_rows import SCORES, MakeSpec

from tutti.config.cleaning import Cleaning
from tutti.data.prepared import load_prepared
from tutti.errors import TaskFileError


def test_labels_of_a_regression_are_numbers_in_every_part(make_spec: MakeSpec, run_preparation: Any) -> None:
    spec = make_spec(train=SCORES, test=[("0", "a")], metric="pearson", extra=[([("x", "more", "99.5")], 0.5)])
    prepared = run_preparation(spec)
    assert prepared.tasks[0].kind.name == "value"
    assert prepared.tasks[0].names == ()
    train, held_out = prepared.rows("A", "train"), prepared.rows("A", "validation")
    assert (train["label"].dtype, held_out["label"].dtype) == (np.float32, np.float32)
    assert sorted([*train["id"], *held_out["id"]]) == sorted(["extra0/x", *(row[0] for row in SCORES)])
    truth = {row[0]: np.float32(row[2]) for row in SCORES} | {"extra0/x": np.float32(99.5)}
    for rows in (train, held_out):
        assert all(truth[identity] == label for identity, label in zip(rows["id"], rows["label"], strict=True))
    assert train["weight"].to_list() == [0.5 if identity == "extra0/x" else 1 for identity in train["id"]]
    assert len(held_out) == 8
    assert load_prepared(prepared.folder) == prepared


def test_the_same_numbers_are_classes_under_a_metric_of_classes(make_spec: MakeSpec, run_preparation: Any) -> None:
    prepared = run_preparation(make_spec(train=SCORES))
    assert prepared.tasks[0].names == ("0", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4", "4.5", "5")
    assert prepared.rows("A", "train")["label"].dtype == np.int32


def test_validation_values_that_no_training_row_has_are_no_fault(make_spec: MakeSpec, run_preparation: Any) -> None:
    prepared = run_preparation(
        make_spec(train=SCORES, validation=[("z", "c", "-7.25"), ("y", "d", "3")], metric="neg_mse")
    )
    assert prepared.rows("A", "validation")["label"].tolist() == [-7.25, 3]


def test_duplicates_of_a_regression_are_told_by_their_value(make_spec: MakeSpec, run_preparation: Any) -> None:
    rows = [("a", "same", "3.5"), ("b", "same", "3.50"), ("c", "same", "4")]
    spec = make_spec(train=SCORES + rows, validation=[*rows, ("d", "unseen", "1")], metric="spearman")
    prepared = run_preparation(replace(spec, cleaning=Cleaning(duplicates=True)))
    assert prepared.ids("A", "train").tolist()[-2:] == ["a", "c"]


def test_labels_that_are_no_numbers_are_named_in_all_files(make_spec: MakeSpec, run_preparation: Any) -> None:
    spec = make_spec(
        train=[*SCORES, ("bad", "c", "high")],
        validation=[("z", "c", "low"), ("y", "d", "1")],
        extra=[([("0", "e", "mid")], 1.0)],
        metric="pearson",
    )
    with pytest.raises(TaskFileError) as caught:
        run_preparation(spec)
    places = [(Path(fault.what).name, fault.got) for fault in caught.value.faults]
    assert sorted(places) == [
        ("extra0.tsv, line 1", "'mid'"),
        ("train.tsv, line 41", "'high'"),
        ("validation.tsv, line 1", "'low'"),
    ]


def test_labels_that_are_all_the_same_number_are_refused(make_spec: MakeSpec, run_preparation: Any) -> None:
    rows = [("a", "b", "2.5"), ("c", "d", "2.50"), ("e", "f", "2.5")]
    with pytest.raises(TaskFileError, match=r"train.tsv must have labels that differ.*; got 2.5 in every row"):
        run_preparation(make_spec(train=rows, metric="pearson"))
