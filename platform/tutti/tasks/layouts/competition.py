"""The layout of Chinese competitions: tab-separated, no header, no quoting: ``id, text[, text_b][, label]``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pandas import DataFrame

from tutti.errors import Fault
from tutti.files import sha256_of
from tutti.tasks.layouts.reading import checked_frame, existing_file
from tutti.tasks.layouts.tabs import blocks_of, lines_of, split_columns, write_lines

_REMEDY = "mend the line, or set cleaning.broken_rows where a text holds a line feed"


@dataclass(frozen=True)
class Competition:
    """See the module.

    Attributes:
        pair: whether a row has two texts.
        repair: whether rows broken by line feeds inside a text are mended.
    """

    pair: bool = False
    repair: bool = False

    def origin(self, source: str) -> str:
        return source

    def fingerprint(self, source: str) -> str:
        return sha256_of(existing_file(source))

    def read(self, source: str, *, labelled: bool, numbers: bool = False) -> DataFrame:
        names = self._names(labelled=labelled)
        lines = list(lines_of(source))
        if self.repair:
            rows, places, faults = _whole(*_mended(lines, names), names, origin=source)
        else:
            rows, places, faults = split_columns(lines, names, origin=source, remedy=_REMEDY)
        return _frame(rows, places, names, origin=source, faults=faults, numbers=numbers)

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        names, first, begun = self._names(labelled=False), 1, list[str]()
        for block in blocks_of(lines_of(source), rows):
            if self.repair:  # the next block may go on with this one's last row
                lines = [*begun, *block]
                joined, places = _mended(lines, names, first_line=first)
                cut = places[-1] - first
                first, begun = places[-1], lines[cut:]
                found = _whole(joined[:-1], places[:-1], names, origin=source)
            else:
                found = split_columns(block, names, origin=source, first_line=first, remedy=_REMEDY)
                first += len(block)
            if found[0] or found[2]:
                yield _frame(*found[:2], names, origin=source, faults=found[2], unique=False)
        if begun:
            found = _whole(*_mended(begun, names, first_line=first), names, origin=source)
            yield _frame(*found[:2], names, origin=source, faults=found[2], unique=False)

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


def _mended(lines: Sequence[str], names: Sequence[str], *, first_line: int = 1) -> tuple[list[list[str]], list[int]]:
    """Joins a row that has too few columns with the lines that follow, a space in place of each line feed.

    A row's first line holds at least its id and a tab. So where the last column is a text, a line without a tab goes on
    with the row before, although that one has all its columns. Each row comes with the number of its first line.
    """
    rows: list[list[str]] = []
    places: list[int] = []
    for number, line in enumerate(lines, start=first_line):
        cells = line.split("\t")
        room = len(names) - len(rows[-1]) if rows else 0
        goes_on = room > 0 or (names[-1] != "label" and len(cells) == 1 and bool(rows))
        if goes_on and len(cells) - 1 <= room:
            rows[-1][-1] += f" {cells[0]}"
            rows[-1] += cells[1:]
        else:
            rows.append(cells)
            places.append(number)
    return rows, places


def _whole(
    rows: Sequence[list[str]], places: Sequence[int], names: Sequence[str], *, origin: str
) -> tuple[list[list[str]], list[int], list[Fault]]:
    """The rows that have all columns, and a fault for each other one."""
    rule = f"have {len(names)} tab-separated columns ({', '.join(names)}), also once lines are joined"
    whole = [len(row) == len(names) for row in rows]
    faults = [
        Fault(f"{origin}, line {place}", rule, str(len(row)), "mend the line")
        for row, place, good in zip(rows, places, whole, strict=True)
        if not good
    ]
    kept = [index for index, good in enumerate(whole) if good]
    return [rows[index] for index in kept], [places[index] for index in kept], faults
