"""Rows of tab-separated lines, with the repair of rows that line feeds inside a text have broken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from tutti.errors import Fault
from tutti.tasks.layouts.tabs import blocks_of, split_columns

Rows = tuple[list[list[str]], list[int], list[Fault]]
"""The cells of the rows with all columns, the number of each row's first line, and a fault for each other row."""


_IDS = ("id", "index")  # names of a first column


@dataclass(frozen=True)
class LineRows:
    """How the lines of one file become rows.

    Attributes:
        names: the columns.
        origin: the file, for messages.
        remedy: what to do about a line with another number of columns, if rows are not repaired.
        ends_in_text: whether the last column is a text, so that a whole row may have a broken one.
        repair: whether to join rows that were broken by line feeds inside a text.
        drop: whether rows that still lack a column are dropped, unless all do.
    """

    names: Sequence[str]
    origin: str
    remedy: str
    ends_in_text: bool
    repair: bool
    drop: bool = False

    def of(self, lines: Sequence[str], *, first_line: int) -> Rows:
        """The rows of all lines; ``first_line`` is the number of the first one."""
        if self.repair:
            return self._complete(list(self._joined(lines, first_line)))
        return split_columns(lines, self.names, origin=self.origin, first_line=first_line, remedy=self.remedy)

    def blocks(self, lines: Iterator[str], rows: int, *, first_line: int) -> Iterator[Rows]:
        """Yields the same rows in blocks of at most ``rows``. No block lacks both rows and faults."""
        if self.repair:
            yield from map(self._complete, blocks_of(self._joined(lines, first_line), rows))
            return
        for lines_of_block in blocks_of(lines, rows):
            yield self.of(lines_of_block, first_line=first_line)
            first_line += len(lines_of_block)

    def _joined(self, lines: Iterable[str], first_line: int) -> Iterator[tuple[list[str], int]]:
        """Joins a row that has too few columns with the following lines, and replaces each line feed by a space.

        The first line of a row that begins with an id has a tab. Therefore, if the last column is a text, a line
        without a tab continues the row before it, even if that row is complete; no other line continues one without a
        tab, nor an empty one.

        Yields:
            Each row, and the number of its first line.
        """
        row: list[str] = []  # without its last cell, whose lines are in ``last``
        last: list[str] = []
        place = first_line
        for number, line in enumerate(lines, start=first_line):
            cells = line.split("\t")
            begun = bool(row) or (self.names[0] not in _IDS and last != [""])
            missing = len(self.names) - len(row) - 1 if last and begun else 0
            continues = missing > 0 or (self.ends_in_text and len(cells) == 1 and bool(last))
            if continues and len(cells) - 1 <= missing:
                last.append(cells[0])
                if len(cells) > 1:
                    row += [" ".join(last), *cells[1:-1]]
                    last = cells[-1:]
                continue
            if last:
                yield [*row, " ".join(last)], place
            row, last, place = cells[:-1], cells[-1:], number
        if last:
            yield [*row, " ".join(last)], place

    def _complete(self, joined: Sequence[tuple[list[str], int]]) -> Rows:
        """Separates the rows that have all columns from the others."""
        rows, places = [row for row, _ in joined], [place for _, place in joined]
        rule = f"have {len(self.names)} tab-separated columns ({', '.join(self.names)}), also once lines are joined"
        complete = [len(row) == len(self.names) for row in rows]
        drop = self.drop and any(complete)
        faults = [
            Fault(f"{self.origin}, line {place}", rule, str(len(row)), "correct the line")
            for row, place, is_complete in zip(rows, places, complete, strict=True)
            if not is_complete and not (drop and len(row) < len(self.names))
        ]
        return list(compress(rows, complete)), list(compress(places, complete)), faults
