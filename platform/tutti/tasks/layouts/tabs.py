"""Tab-separated lines without quoting: quote characters are text, and only a line feed ends a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tutti.errors import Fault, TaskFileError
from tutti.files import write_whole


def split_lines(text: str) -> list[str]:
    """The lines of ``text`` without their ends (``\\n`` or ``\\r\\n``), less empty lines at the end of the file.

    ``str.splitlines`` would also split at U+2028, U+0085, form feeds and others, which real texts hold.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def split_columns(
    lines: Sequence[str], names: Sequence[str], *, origin: str, first_line: int = 1, remedy: str
) -> tuple[list[list[str]], list[int], list[Fault]]:
    """The cells of each good line, the numbers of these lines, and a fault for each line with another column count."""
    cells = [line.split("\t") for line in lines]
    wrong = {len(row) for row in cells if len(row) != len(names)}
    rule = f"have {len(names)} tab-separated columns ({', '.join(names)})"
    if len(wrong) == 1 and len(cells) > 1 and all(len(row) in wrong for row in cells):
        return [], [], [Fault(origin, rule, f"{wrong.pop()} in every line", "see whether this is the right file")]
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
    """Writes one line for each row, whole or not at all.

    Raises:
        TaskFileError: where a cell holds a tab or a line feed, or the last one ends in a carriage return.
        StorageError: where the file system refuses.
    """
    lines = []
    for number, row in enumerate(rows, start=1):
        if any("\t" in cell or "\n" in cell for cell in row) or row[-1].endswith("\r"):
            rule = "hold neither a tab nor a line feed, which this layout cannot write"
            raise TaskFileError(Fault(f"{path}, line {number}", rule, repr(row), "put spaces in their place"))
        lines.append("\t".join(row) + "\n")
    write_whole(path, "".join(lines))
