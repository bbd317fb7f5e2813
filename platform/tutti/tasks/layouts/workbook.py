"""Workbooks of Excel: the rows of the first sheet, under a header."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zipfile import BadZipFile

from tutti.errors import Fault, TaskFileError, first_line
from tutti.tasks.layouts.packed import opened
from tutti.tasks.layouts.reading import Block, check_names, raise_any
from tutti.tasks.layouts.tabs import blocks_of

SUFFIX = ".xlsx"


def workbook_blocks(source: str, limit: int | None) -> Iterator[Block]:
    """Blocks of at most so many rows, or one of all; one without rows where the sheet has none.

    Empty rows are passed over. A formula's cell has the value that Excel saved with it.

    Raises:
        TaskFileError: where the file is no workbook, openpyxl is missing, or a row has more cells than the header.
    """
    with _workbook(source) as book:
        rows = ((number, list(cells)) for number, cells in _rows(book.worksheets[0]))
        _, header = next(rows, (0, []))
        names = ["" if name is None else str(name) for name in header]
        check_names(names, source)
        first = True
        for block in blocks_of(rows, limit):
            yield _block(block, names, source)
            first = False
        if first and limit is not None:
            yield _block([], names, source)


def sheet_notice(source: str) -> str | None:
    """One sentence where a workbook has several sheets, of which only the first one is read."""
    with _workbook(source) as book:
        names = book.sheetnames
    return f"{source}: of its {len(names)} sheets only the first is read, {names[0]!r}" if len(names) > 1 else None


@contextmanager
def _workbook(source: str) -> Iterator[Any]:
    try:
        import openpyxl
        from openpyxl.utils.exceptions import InvalidFileException
    except ImportError as error:
        remedy = "install it with `pip install 'openpyxl>=3.1'`, or save the file as .csv"
        raise TaskFileError(Fault(source, "be read by the package openpyxl", "no such package", remedy)) from error
    with opened(source) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and the like, which nobody reads
        try:
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        except (InvalidFileException, BadZipFile, KeyError, ValueError, OSError) as error:
            got, remedy = first_line(error), "save it as .xlsx without a password, or as .csv"
            raise TaskFileError(Fault(source, "be a workbook of Excel", got, remedy)) from error
        try:
            yield book
        finally:
            book.close()


def _rows(sheet: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The rows that are not empty, by their number, without empty cells at their end."""
    sheet.reset_dimensions()  # which other programs than Excel often write wrong
    for number, cells in enumerate(sheet.iter_rows(values_only=True), start=1):
        last = next((place for place in range(len(cells), 0, -1) if cells[place - 1] is not None), 0)
        if last:
            yield number, cells[:last]


def _block(rows: list[tuple[int, list[Any]]], names: list[str], source: str) -> Block:
    rule, remedy = f"have at most {len(names)} cells, like the header", "name the columns, or empty the cells"
    faults = [
        Fault(f"{source}, row {number}", rule, str(len(cells)), remedy)
        for number, cells in rows
        if len(cells) > len(names)
    ]
    raise_any(faults, origin=source)
    values = [cells + [None] * (len(names) - len(cells)) for _, cells in rows]
    return {name: [row[place] for row in values] for place, name in enumerate(names)}, [row for row, _ in rows], "row"
