"""Cells of typed tables as texts."""

from __future__ import annotations

import ast
import json
from contextlib import suppress


def cell_text(value: object) -> str:
    """A cell as text, empty for None and for NaN, which is how pandas writes none."""
    return "" if value is None or value != value else str(value)


def id_text(value: object) -> str:
    """A cell of a column of ids as text: 7 for the float 7.0, as pandas has whole numbers beside empty cells."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else cell_text(value)


def parsed(cell: str) -> object:
    """The list or mapping of a cell, written as JSON, or as Python and so pandas write it; None if it is neither."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return read(cell)
    return None
