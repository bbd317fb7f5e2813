"""A column of groups that a study may have missed is named, and few others are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tutti.data.missed_group import missed_group
from tutti.tasks.kinds.registry import KINDS

RNG = np.random.default_rng(0)
GROUPS = np.repeat(np.arange(100), 3)


def found(labels: Any, column: Any, *, texts: dict[str, str] | None = None, values: bool = False) -> str | None:
    strata = KINDS["value" if values else "classes"].indicators(np.asarray(labels))
    return missed_group(strata, {"prompt_id": list(column)}, texts=texts or {})


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
    strata, texts = KINDS["classes"].indicators(RNG.integers(2, size=300)), {"text": "their first text"}
    notice = missed_group(strata, {"text": [f"p{n}" for n in GROUPS]}, texts=texts)
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
