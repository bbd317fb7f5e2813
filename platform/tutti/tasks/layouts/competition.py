"""The layout of Chinese competitions: tab-separated, no header, no quoting: ``id, text[, text_b][, label]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pandas import DataFrame

from tutti.errors import Fault
from tutti.files import sha256_of
from tutti.tasks.layouts.reading import checked_frame, existing_file, file_text
from tutti.tasks.layouts.tabs import split_columns, split_lines, write_lines


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
        lines = split_lines(file_text(source))
        if self.repair:
            rows, places, faults = _mended(lines, names, origin=source)
        else:
            remedy = "mend the line, or set cleaning.broken_rows where a text holds a line feed"
            rows, places, faults = split_columns(lines, names, origin=source, remedy=remedy)
        columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
        return checked_frame(columns, origin=source, places=places, faults=faults, numbers=numbers)

    def write(self, rows: DataFrame, path: Path) -> None:
        write_lines(path, rows[self._names(labelled=True)].itertuples(index=False, name=None))

    def _names(self, *, labelled: bool) -> list[str]:
        return ["id", "text", *(["text_b"] if self.pair else []), *(["label"] if labelled else [])]


def _mended(
    lines: Sequence[str], names: Sequence[str], *, origin: str
) -> tuple[list[list[str]], list[int], list[Fault]]:
    """Joins a row that has too few columns with the lines that follow, a space in place of each line feed.

    A row's first line holds at least its id and a tab. So where the last column is a text, a line without a tab goes on
    with the row before, although that one has all its columns.
    """
    rows: list[list[str]] = []
    places: list[int] = []
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        room = len(names) - len(rows[-1]) if rows else 0
        goes_on = room > 0 or (names[-1] != "label" and len(cells) == 1 and bool(rows))
        if goes_on and len(cells) - 1 <= room:
            rows[-1][-1] += f" {cells[0]}"
            rows[-1] += cells[1:]
        else:
            rows.append(cells)
            places.append(number)
    rule = f"have {len(names)} tab-separated columns ({', '.join(names)}), also once lines are joined"
    whole = [len(row) == len(names) for row in rows]
    faults = [
        Fault(f"{origin}, line {place}", rule, str(len(row)), "mend the line")
        for row, place, good in zip(rows, places, whole, strict=True)
        if not good
    ]
    kept = [index for index, good in enumerate(whole) if good]
    return [rows[index] for index in kept], [places[index] for index in kept], faults
