"""A column of groups that a study may have missed is named, and few others are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tutti.data.missed_group import missed_group

RNG = np.random.default_rng(0)
GROUPS = np.repeat(np.arange(100), 3)


def found(labels: Any, column: Any, *, texts: dict[str, str] | None = None, values: bool = False) -> str | None:
    return missed_group(np.asarray(labels), {"prompt_id": list(column)}, texts=texts or {}, values=values)


@pytest.mark.parametrize(
    ("labels", "values"),
    [
        (RNG.integers(3, size=100)[GROUPS], False),  # alike
        (np.tile(np.arange(3), 100), False),  # each class once, as of three hypotheses
        (RNG.normal(size=100)[GROUPS] + RNG.normal(size=300) / 4, True),
    ],
)
def test_a_column_whose_values_tell_of_labels_is_named(labels: np.ndarray, values: bool) -> None:
    notice = found(labels, [f"p{group}" for group in GROUPS], values=values)
    assert notice == (
        "300 of 300 rows share their value of the column 'prompt_id' with others; to hold them out together, set "
        "`split: {group: prompt_id}`"
    )


def test_a_text_that_many_rows_share_is_named_whatever_their_labels() -> None:
    notice = missed_group(
        RNG.integers(2, size=300), {"text": [f"p{n}" for n in GROUPS]}, texts={"text": "their first text"}, values=False
    )
    assert notice is not None
    assert "300 of 300 rows share their first text with others" in notice


@pytest.mark.parametrize(
    "column",
    [
        RNG.integers(100, size=300),  # numbers of no meaning
        np.arange(300),  # ids
        np.arange(300) % 3,  # a category, though of the labels
        [""] * 300,
        [["a list"]] * 300,
        [*["p1", "p2"] * 10, *map(str, range(280))],  # few rows share one
    ],
)
def test_other_columns_are_not(column: Any) -> None:
    assert found(np.arange(300) % 3, column) is None
