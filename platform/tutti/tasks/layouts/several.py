"""Labels or numbers of a row in several columns, or in a cell with a list, as one text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tutti.errors import Fault
from tutti.tasks.layouts.cells import parsed

PREFIX = "label of "
"""Prefix of our names for the columns of a table that hold one label or number each."""
_TRUE, _FALSE = ("1", "1.0", "true"), ("0", "0.0", "false")


def by_columns(cells: Mapping[str, Sequence[str]]) -> list[str]:
    """One JSON object of each row's cells, by the names of their columns."""
    rows = zip(*cells.values(), strict=True)
    return [json.dumps(dict(zip(cells, map(str.strip, row), strict=True)), ensure_ascii=False) for row in rows]


def chosen(cells: Mapping[str, Sequence[str]], where: Sequence[str], faults: list[Fault]) -> list[str]:
    """The name of the column that is 1 in each row, where all others are 0.

    Args:
        where: by row, its place in the file.
        faults: to which those of rows are added that have another number of them.
    """
    names, found = list(cells), []
    for row, place in zip(zip(*cells.values(), strict=True), where, strict=True):
        own = [name for name, cell in zip(names, row, strict=True) if cell.strip().casefold() in _TRUE]
        if len(own) != 1 or any(cell.strip().casefold() not in _TRUE + _FALSE for cell in row):
            rule, got = f"have 1 in one of the columns {', '.join(names)} and 0 in the others", ", ".join(row)
            faults.append(Fault(place, rule, got, "correct the row, or name them as `columns: {labels: [...]}`"))
        found.append((own or names)[0])
    return found


def in_columns(labels: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """The inverse of ``chosen``."""
    return {name: [str(int(label == name)) for label in labels] for name in names}


def listed(cells: Sequence[str], separator: str | None) -> list[str]:
    """One JSON list of the names in each cell: a JSON list itself, or names with a separator between them."""
    return [json.dumps(_names(cell.strip(), separator), ensure_ascii=False) for cell in cells]


def list_text(values: Sequence[Any]) -> str:
    """A list in a typed table as the text of a cell."""
    return json.dumps(["" if value is None else str(value) for value in values], ensure_ascii=False)


def _names(cell: str, separator: str | None) -> list[str]:
    if cell.startswith("[") and isinstance(values := parsed(cell), list):
        return [str(value).strip() for value in values if str(value).strip()]
    names = [cell] if separator is None else cell.split(separator)
    return [name.strip() for name in names if name.strip()]


def columns_of(labels: Sequence[str]) -> dict[str, list[str]]:
    """The inverse of ``by_columns``."""
    rows = [json.loads(label) for label in labels]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def joined(labels: Sequence[str], separator: str | None) -> list[str]:
    """Cells with the names that rows have, of what ``by_columns`` returns for labels of 0 and 1."""
    cells = []
    for label in labels:
        names = [name for name, value in json.loads(label).items() if value == "1"]
        plain = separator is not None and not any(separator in name for name in names)
        cells.append(str(separator).join(names) if plain else json.dumps(names, ensure_ascii=False))
    return cells
