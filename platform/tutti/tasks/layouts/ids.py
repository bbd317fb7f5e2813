"""Which column of a table has the ids of its rows, where the study file does not name one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tutti.errors import TaskFileError
from tutti.tasks.layouts.cells import cell_text

WHOLE_FLOATS = 2**53
"""Floats below have all digits of a whole number; greater ones may have lost some."""

_ID = re.compile(r"(.*[\W_]|.*[^\x00-\x7f])?[Ii][Dd]|.*[a-z0-9]I[Dd]")  # ID, row_id, essayId, 文章ID; not paid or valid


def is_id_name(name: str) -> bool:
    """Whether a column is called as ids are, such as ``id``, ``ID``, ``row_id`` or ``essayId``."""
    return _ID.fullmatch(name.strip()) is not None


def id_columns(
    names: Sequence[str], *, sample_ids: Sequence[str], cells: Callable[[str], Iterable[tuple[Sequence[Any], int]]]
) -> list[str]:
    """The columns that may be the ids: none, one, or several, among which nothing decides.

    The first of these that there is: a name that a sample submission has for its ids, ``id``, ``id`` in other letters
    such as ``Id``, and all names such as ``row_id`` or ``essayId`` of columns with another value in every row.

    Args:
        names: of the table's columns, without those of texts and labels.
        cells: a column's values in blocks, each with its number of rows.
    """
    for found in (
        [name for name in names if name in sample_ids],
        [name for name in names if name == "id"],
        [name for name in names if name.strip().casefold() == "id"],
    ):
        if len(found) == 1:
            return found
    return [name for name in names if is_id_name(name) and _all_differ(cells(name))]


def _all_differ(blocks: Iterable[tuple[Sequence[Any], int]]) -> bool:
    """Whether every row has a value of its own. Keeps them in memory, up to the first that repeats."""
    seen: set[str] = set()
    try:
        for values, rows in blocks:
            if any(isinstance(value, (list, dict, bytes)) for value in values):
                return False
            new = {text for value in values if (text := cell_text(value)).strip()}
            if len(new) < rows or not new.isdisjoint(seen):
                return False
            seen |= new
    except TaskFileError:  # a row lacks it, or has a fault that the reader of the rows will name
        return False
    return True
