"""Cells of typed tables as texts."""

from __future__ import annotations


def cell_text(value: object) -> str:
    """A cell as text, empty for None and for NaN, which is how pandas writes none."""
    return "" if value is None or value != value else str(value)


def id_text(value: object) -> str:
    """A cell of a column of ids as text: 7 for the float 7.0, as pandas has whole numbers beside empty cells."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else cell_text(value)
