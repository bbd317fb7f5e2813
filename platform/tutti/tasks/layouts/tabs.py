"""Tab-separated lines without quoting: quotation marks are ordinary characters, and only a line feed ends a row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import TypeVar

from tutti.errors import Fault, counted
from tutti.files import write_whole
from tutti.tasks.layouts.packed import opened_text
from tutti.tasks.layouts.reading import check_text

Item = TypeVar("Item")
_QUOTED = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')  # a cell with quotation marks as CSV programs write it
_TO_SPACES = str.maketrans("\t\n", "  ")


def lines_of(source: str) -> Iterator[str]:
    """The lines of a UTF-8 file without line endings (``\\n`` or ``\\r\\n``) and without trailing empty lines.

    ``str.splitlines`` would also split at U+2028, U+0085, form feeds and others, which occur in real texts.

    Raises:
        TaskFileError: as ``check_text`` does.
    """
    check_text(source)
    empty = 0
    with opened_text(source) as file:
        for line in file:
            if not (content := line.removesuffix("\n").removesuffix("\r")):
                empty += 1
                continue
            yield from repeat("", empty)
            empty = 0
            yield content


def quoted_notice(source: str) -> str | None:
    """One sentence where cells are quoted, as pandas writes those that hold quotation marks: they are read as text."""
    lines = (line for line in lines_of(source) if '""' in line)
    quoted = sum(any(map(_QUOTED.fullmatch, line.split("\t"))) for line in lines)
    if not quoted:
        return None
    rows = f"{counted(quoted, 'row')} {'has' if quoted == 1 else 'have'} cells quoted as in a CSV file"
    remedy = "whose quotation marks are read as text; to read them without, make it a .csv file of the layout table"
    return f"{source}: {rows}, {remedy}"


def blocks_of(items: Iterator[Item], rows: int | None) -> Iterator[list[Item]]:
    """Groups lines, or other items, into blocks of ``rows``; None for one of all, which may be empty."""
    if rows is None:
        yield list(items)
    while block := list(islice(items, rows)):
        yield block


def split_columns(
    lines: Sequence[str], names: Sequence[str], *, origin: str, first_line: int, remedy: str
) -> tuple[list[list[str]], list[int], list[Fault]]:
    """The cells and numbers of the lines with the right column count, and a fault for each other line."""
    cells = [line.split("\t") for line in lines]
    wrong_counts = {len(row) for row in cells if len(row) != len(names)}
    starts = first_line <= 2  # not a later block, whose faults say nothing of the file
    rule = f"have {len(names)} tab-separated columns ({', '.join(names)})"
    if starts and len(wrong_counts) == 1 and len(cells) > 1 and all(len(row) in wrong_counts for row in cells):
        commas = wrong_counts == {1} and all("," in line for line in lines)
        remedy = "separate the columns by tabs" if commas else "check whether this is the right file"
        if wrong_counts == {len(names) + 1} and "text" in names and "text_b" not in names:
            remedy = f"set `pair: true` where rows have two texts, or {remedy}"
        return [], [], [Fault(origin, rule, f"{wrong_counts.pop()} in every line", remedy)]
    rows: list[list[str]] = []
    places: list[int] = []
    faults: list[Fault] = []
    for number, row in enumerate(cells, start=first_line):
        if len(row) == len(names):
            rows.append(row)
            places.append(number)
        else:
            faults.append(Fault(f"{origin}, line {number}", rule, str(len(row)), remedy))
    return rows, places, faults


def write_lines(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Writes one line for each row, atomically. Spaces replace tabs and line feeds, and a carriage return at its end.

    Raises:
        StorageError: where the file system refuses.
    """
    lines = ("\t".join(cell.translate(_TO_SPACES) for cell in row) for row in rows)
    write_whole(path, "".join((f"{line[:-1]} " if line.endswith("\r") else line) + "\n" for line in lines))
