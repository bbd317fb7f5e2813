"""Labels that make a class of what hardly is one are told before anything is trained on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from task_rows import TRAIN, MakeSpec

from tutti.data.odd_labels import odd_labels, unjudged_classes
from tutti.errors import TaskFileError


def notices(*labels: str) -> list[str]:
    return odd_labels(pd.Series(labels), source="a.csv")


@pytest.mark.parametrize(
    "slip",
    ["Calm", "cal\u200bm", "CALM", "\uff23alm", "calm\u00a0 down"],
    ids=["case", "invisible", "all", "wide", "space"],
)
def test_labels_that_look_alike_are_told_with_their_rows(slip: str) -> None:
    usual = "calm down" if "down" in slip else "calm"
    [notice] = notices(usual, usual, slip, "glad")
    assert {repr(usual) + " (2 rows)", repr(slip) + " (1 row)"} <= {
        *notice[len("a.csv: ") :].split(" are ")[0].split(" and ")
    }
    assert notice.endswith("are classes of their own; if they differ by a slip alone, write them alike")


@pytest.mark.parametrize("missing", ["nan", "None", "NULL", "N/A", "?"])
def test_a_label_that_other_programs_write_for_a_missing_one_is_told(missing: str) -> None:
    assert notices("calm", missing, missing) == [
        f"a.csv: {missing!r} (2 rows) is a class like any other; take these rows out if their label is missing"
    ]


def test_amounts_under_a_metric_of_classes_are_told_and_refused_where_hardly_two_are_the_same() -> None:
    [notice] = notices(*["1.5", "2", "2.5"] * 3)
    assert notice.startswith(
        "a.csv: 3 different numbers in 9 rows are a class each; if they are amounts, name a metric"
    )
    with pytest.raises(
        TaskFileError, match=r"several rows of each class, .* got 9 different numbers in 10 rows; name a"
    ):
        notices(*(f"{n}.25" for n in range(9)), "0.25")


@pytest.mark.parametrize("labels", [["calm", "glad"], ["0.0", "1.0"], ["-1", "1", "10"], ["1", "1a"], ["a b", "ab"]])
def test_usual_labels_are_not_told(labels: list[str]) -> None:
    assert notices(*labels, *labels) == []


def test_classes_without_a_validation_row_are_told_with_their_training_rows() -> None:
    train, told = (
        np.array([0, 1, 1, 2, 3]),
        "A: no validation row is of the class 'a' (1 training row), 'd' (1 training row)",
    )
    assert (
        unjudged_classes("abcd", train=train, validation=np.array([1, 2]), task="A") == f"{told}, which no score judges"
    )
    assert unjudged_classes("abcd", train=train, validation=np.arange(4), task="A") is None


def test_a_study_is_told_of_odd_labels_in_its_rows(make_spec: MakeSpec, run_preparation: Any) -> None:
    told = run_preparation(make_spec(train=[*TRAIN, ("x", "another", "None")])).notices
    assert [text.split(": ")[1].split(" is ")[0] for text in told] == ["'None' (1 row)", "no validation row"]
