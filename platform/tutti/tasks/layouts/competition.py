"""The layout of Chinese competitions: tab-separated, no header, no quoting: ``id, text[, text_b][, label]``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

from pandas import DataFrame

from tutti.errors import Fault
from tutti.tasks.layouts.reading import FileSource, checked_frame
from tutti.tasks.layouts.tabs import blocks_of, lines_of, split_columns, write_lines

_REMEDY = "correct the line, or set cleaning.broken_rows where a text holds a line feed"


@dataclass(frozen=True)
class Competition(FileSource):
    """The layout described by the module.

    Attributes:
        pair: whether a row has two texts.
        repair: whether to join rows that were broken by line feeds inside a text.
    """

    pair: bool = False
    repair: bool = False

    def read(self, source: str, *, labelled: bool, numbers: bool = False) -> DataFrame:
        names = self._names(labelled=labelled)
        lines = list(lines_of(source))
        if self.repair:
            rows, places, faults = _complete_rows(*_joined_rows(lines, names), names, origin=source)
        else:
            rows, places, faults = split_columns(lines, names, origin=source, remedy=_REMEDY)
        return _frame(rows, places, names, origin=source, faults=faults, numbers=numbers)

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        names, first, pending = self._names(labelled=False), 1, list[str]()
        for block in blocks_of(lines_of(source), rows):
            if self.repair:  # the next block may continue this one's last row
                lines = [*pending, *block]
                joined, numbers = _joined_rows(lines, names, first_line=first)
                cut = numbers[-1] - first
                first, pending = numbers[-1], lines[cut:]
                cells, places, faults = _complete_rows(joined[:-1], numbers[:-1], names, origin=source)
            else:
                cells, places, faults = split_columns(block, names, origin=source, first_line=first, remedy=_REMEDY)
                first += len(block)
            if cells or faults:
                yield _frame(cells, places, names, origin=source, faults=faults, unique=False)
        if pending:
            joined, numbers = _joined_rows(pending, names, first_line=first)
            cells, places, faults = _complete_rows(joined, numbers, names, origin=source)
            yield _frame(cells, places, names, origin=source, faults=faults, unique=False)

    def write(self, rows: DataFrame, path: Path) -> None:
        write_lines(path, rows[self._names(labelled=True)].itertuples(index=False, name=None))

    def _names(self, *, labelled: bool) -> list[str]:
        return ["id", "text", *(["text_b"] if self.pair else []), *(["label"] if labelled else [])]


def _frame(
    rows: Sequence[Sequence[str]],
    places: Sequence[int],
    names: Sequence[str],
    *,
    origin: str,
    faults: Sequence[Fault],
    numbers: bool = False,
    unique: bool = True,
) -> DataFrame:
    columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    return checked_frame(columns, origin=origin, places=places, faults=faults, numbers=numbers, unique=unique)


def _joined_rows(
    lines: Sequence[str], names: Sequence[str], *, first_line: int = 1
) -> tuple[list[list[str]], list[int]]:
    """Joins a row that has too few columns with the following lines, and replaces each line feed by a space.

    The first line of a row has at least an id and a tab. Therefore, if the last column is a text, a line without a tab
    continues the row before it, even if that row is complete.

    Returns:
        The rows, and the number of each row's first line.
    """
    rows: list[list[str]] = []
    places: list[int] = []
    for number, line in enumerate(lines, start=first_line):
        cells = line.split("\t")
        missing = len(names) - len(rows[-1]) if rows else 0
        continues = missing > 0 or (names[-1] != "label" and len(cells) == 1 and bool(rows))
        if continues and len(cells) - 1 <= missing:
            rows[-1][-1] += f" {cells[0]}"
            rows[-1] += cells[1:]
        else:
            rows.append(cells)
            places.append(number)
    return rows, places


def _complete_rows(
    rows: Sequence[list[str]], places: Sequence[int], names: Sequence[str], *, origin: str
) -> tuple[list[list[str]], list[int], list[Fault]]:
    """The rows with all columns, their places, and a fault for each incomplete row."""
    rule = f"have {len(names)} tab-separated columns ({', '.join(names)}), also once lines are joined"
    complete = [len(row) == len(names) for row in rows]
    faults = [
        Fault(f"{origin}, line {place}", rule, str(len(row)), "correct the line")
        for row, place, is_complete in zip(rows, places, complete, strict=True)
        if not is_complete
    ]
    return list(compress(rows, complete)), list(compress(places, complete)), faults
