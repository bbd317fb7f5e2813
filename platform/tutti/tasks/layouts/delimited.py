"""Tables of text with a header: CSV (RFC 4180) and tab-separated values (no quoting, unless the header has it).

Other separators and quoted cells are noticed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Set
from itertools import chain

from tutti.errors import Fault
from tutti.tasks.layouts.packed import opened_text
from tutti.tasks.layouts.reading import Block, check_names, check_text, raise_any
from tutti.tasks.layouts.tabs import blocks_of, lines_of, quoted_notice, split_columns

_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}


def delimited_blocks(source: str, limit: int | None, *, suffix: str, wanted: Set[str]) -> Iterator[Block]:
    """Blocks of so many rows, or one block of all; a table without rows gives one empty block.

    Args:
        suffix: ``.csv`` or ``.tsv``.
        wanted: names of columns, by which the separator is found.

    Raises:
        TaskFileError: where a row has other columns than the header.
    """
    check_text(source)
    separator = separator_of(source, suffix, wanted)
    if (suffix, separator) == (".tsv", "\t") and not _is_quoted(source):
        return _tsv_blocks(source, limit)
    return _csv_blocks(source, limit, separator)


def dialect_notice(source: str, *, suffix: str, wanted: Set[str]) -> str | None:
    """One sentence where a file has another separator than its suffix says, or quoted cells where it says none."""
    separator = separator_of(source, suffix, wanted)
    if separator != _usual(suffix):
        return f"{source}: its columns are separated by a {_SEPARATORS[separator]}, and read so"
    if suffix != ".tsv":
        return None
    quoted = f"{source}: its columns are named in quotation marks, so cells are read without those around them"
    return quoted if _is_quoted(source) else quoted_notice(source)


def _usual(suffix: str) -> str:
    return "\t" if suffix == ".tsv" else ","


def separator_of(source: str, suffix: str, wanted: Set[str]) -> str:
    """The suffix's own separator, unless the header has more of the columns ``wanted`` with another one.

    Where it has none of them with any, and is one column, the separator is the one that makes most columns of it.
    """
    usual, line = _usual(suffix), _header(source)
    columns = {separator: cells_of(line, separator) for separator in (usual, *_SEPARATORS)}
    best = max(columns, key=lambda separator: len(wanted & {*columns[separator]}))
    if wanted & {*columns[best]} or len(columns[usual]) > 1:
        return best
    return max(columns, key=lambda separator: len(columns[separator]))


def _header(source: str) -> str:
    with opened_text(source) as file:
        return next((line for line in file if line.strip()), "").split("\r")[0].rstrip("\n")


def _is_quoted(source: str) -> bool:
    """Whether the names of all columns of a tab-separated file are quoted."""
    return all(len(name) > 2 and name[0] == name[-1] == '"' for name in _header(source).split("\t"))


def cells_of(line: str, separator: str) -> list[str]:
    return (
        line.split("\t") if separator == "\t" and '"' not in line else next(csv.reader([line], delimiter=separator), [])
    )


def _csv_blocks(source: str, limit: int | None, separator: str) -> Iterator[Block]:
    # Not pandas, whose parser pads short rows, takes a surplus first column as index, and splits at a lone \r.
    rows: list[list[str]] = []
    places: list[int] = []
    faults: list[Fault] = []
    header: list[str] = []
    blank: list[int] = []  # lines of an empty cell in a file of one column: rows, unless only such lines follow
    start, yielded = 1, False

    def block() -> Block:
        raise_any(faults, origin=source)
        columns = {name: [row[index] for row in rows] for index, name in enumerate(header)}
        finished = columns, list(places), "line"
        rows.clear()
        places.clear()
        return finished

    with opened_text(source) as file:
        reader = csv.reader(file, strict=True, delimiter=separator)
        while True:
            try:
                row = next_of_any_length(reader)
            except csv.Error as error:
                faults.append(_csv_fault(f"{source}, line {start}", error, separator))
                break
            if row is None:
                break
            if not header:
                header = row
                check_names(header, source)
            elif not row:
                if len(header) == 1:
                    blank.append(start)
            elif len(row) != len(header):
                rule = f"have {len(header)} columns like the header"
                remedy = f"quote cells that hold a {_SEPARATORS[separator]}"
                faults.append(Fault(f"{source}, line {start}", rule, str(len(row)), remedy))
            else:
                for place, cells in (*((each, [""]) for each in blank), (start, row)):
                    rows.append(cells)
                    places.append(place)
                    if len(rows) == limit:
                        yield block()
                        yielded = True
                blank.clear()
            start = reader.line_num + 1
    if rows or faults or not yielded:
        yield block()


def _csv_fault(what: str, error: csv.Error, separator: str) -> Fault:
    got, remedy = str(error), "write the file with a CSV library, or quote the cell"
    if separator == "\t":
        remedy = "quote the cell, or end the file's name in .tsv, where quotation marks are text"
    if got.startswith("new-line character"):  # all that newline="\n" leaves of a lone \r outside quotes
        got, remedy = "a carriage return outside quotes", "quote the cell, or end the lines with line feeds"
    return Fault(what, "be CSV as RFC 4180 has it", got, remedy)


def next_of_any_length(reader: Iterator[list[str]]) -> list[str] | None:
    """Reads a row without the csv module's limit of 131,072 characters per cell, which is global to the process."""
    previous = csv.field_size_limit(2**31 - 1)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(previous)


def _tsv_blocks(source: str, limit: int | None) -> Iterator[Block]:
    lines = lines_of(source)
    header = next(lines).split("\t")
    check_names(header, source)
    first = 2
    for block in chain(blocks_of(lines, limit), [[]]):
        if block or first == 2:
            remedy = "take tabs and line feeds out of the cells, or write a CSV file"
            rows, places, faults = split_columns(block, header, origin=source, first_line=first, remedy=remedy)
            raise_any(faults, origin=source)
            yield {name: [row[index] for row in rows] for index, name in enumerate(header)}, places, "line"
        first += max(len(block), 1)
