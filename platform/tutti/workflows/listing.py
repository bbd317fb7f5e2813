"""Tables that fit the terminal: what finds no room as a column goes to a second line, below its row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

WIDE = 100
"""Below this many columns of a terminal, groups that are ``Group.roomy`` go to the second line."""
_GAP, _INDENT = "  ", "      "
_LONGEST, _LEAST = 18, 8  # columns of a name that is cut


@dataclass(frozen=True)
class Group:
    """Columns of numbers that are shown together, or together on the second line as ``name=value``.

    Attributes:
        roomy: whether they are columns only where the terminal has ``WIDE`` columns.
    """

    names: Sequence[str]
    roomy: bool = False


@dataclass(frozen=True)
class Line:
    """One row.

    Attributes:
        cells: of the columns that are always shown.
        further: the cells of each group, in its order; an empty cell is left out of the second line.
        notes: what stands on lines of its own below, such as a reason.
    """

    cells: Sequence[str]
    further: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    style: str = ""


def listing(
    head: Sequence[str],
    lines: Sequence[Line],
    *,
    width: int,
    groups: Sequence[Group] = (),
    left: int = 1,
    title: str | None = None,
    details: bool = True,
) -> Text:
    """A table of at most ``width`` columns as text.

    Args:
        head: names of the columns that are always shown.
        groups: further columns, the most important first: as many as there is room for.
        left: how many of the first columns are aligned at the left.
        details: whether there are second lines; otherwise what has no room is left out.

    Example:
        >>> print(listing(["trial", "score"], [Line(["t0001", "0.71"], [["5"]])], width=80, groups=[Group(["epochs"])]))
        trial  score  epochs
        t0001   0.71       5
    """
    columns = [[name, *(line.cells[place] for line in lines)] for place, name in enumerate(head)]
    room = width - sum(map(_width, columns)) - len(_GAP) * (len(columns) - 1)
    if room < 0:
        columns[0] = _cut(columns[0], most=max(_width(columns[0]) + room, _LEAST))
        room = 0
    below = []
    for place, group in enumerate(groups):
        names = _cut(group.names)
        found = [[name, *(line.further[place][at] or "–" for line in lines)] for at, name in enumerate(names)]
        needed = sum(len(_GAP) + _width(column) for column in found)
        if needed <= room and not (group.roomy and width < WIDE):
            columns, room = columns + found, room - needed
        else:
            below.append(place)
    text = Text()
    for words in wrap(title.split(" "), width=width) if title else ():
        text.append(f"{words}\n", style="italic")
    widths = [_width(column) for column in columns]
    for row, cells in enumerate(zip(*columns, strict=True)):
        aligned = [
            set_cell_size(cell, size) if place < left else " " * (size - cell_len(cell)) + cell
            for place, (cell, size) in enumerate(zip(cells, widths, strict=True))
        ]
        style = lines[row - 1].style if row else "bold"
        text.append(_GAP.join(aligned).rstrip(), style=style).append("\n")
        if row and details:
            line = lines[row - 1]
            pairs = [
                f"{name}={cell}"
                for place in below
                for name, cell in zip(groups[place].names, line.further[place], strict=True)
                if cell
            ]
            for block in (pairs, *(note.split() for note in line.notes)):
                for wrapped in wrap(block, width=width - len(_INDENT)):
                    text.append(f"{_INDENT}{wrapped}\n", style="dim")
    text.rstrip()
    return text


def show_table(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]], *, last: str = "") -> None:
    """Prints a table of texts and numbers, its last row in a style."""
    lines = [Line(cells, style=last if cells is rows[-1] else "") for cells in rows]
    console.print(listing(head, lines, width=console.width))


def wrap(words: Iterable[str], *, width: int) -> list[str]:
    """Words in lines of at most ``width`` columns; a longer word has a line of its own and stays whole."""
    lines: list[str] = []
    for word in words:
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _width(column: Sequence[str]) -> int:
    return max(map(cell_len, column))


def _cut(names: Sequence[str], *, most: int = _LONGEST) -> list[str]:
    """Names cut to so many columns, unless two would be the same."""
    cut = [name if cell_len(name) <= most else f"{set_cell_size(name, most - 1)}…" for name in names]
    return cut if len(set(cut)) == len(cut) else [*names]
