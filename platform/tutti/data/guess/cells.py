"""What the cells of a column are, by looking at them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tutti.config.study import TEXTS
from tutti.data.guess.files import suffix_of
from tutti.tasks.layouts.cells import cell_text
from tutti.tasks.layouts.delimited import cells_of, separator_of
from tutti.tasks.layouts.table import column_names, table_blocks
from tutti.tasks.layouts.tabs import lines_of
from tutti.tasks.number_text import NUMBER
from tutti.tasks.spelling import plain

LOOKED_AT = 20_000
"""Rows of a file that are looked at for what its columns are."""

_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
_LETTER = re.compile(r"[^\W\d_]")
_TEXT_NAMES = re.compile(
    r"(full_?|comment_?|essay_?|discourse_?|review_?)?text(_?[ab12])?|sentences?\d?|content|title|headline|body|review|"
    r"tweet|comment|question\d?|premise|hypothesis|query|prompt|response(_[ab])?|context|passage|abstract|description|"
    r"文本|内容|标题|句子",
    re.IGNORECASE,
)
Columns = Mapping[str, Sequence[Any]]


def columns_of(file: Path) -> dict[str, list[Any]]:
    """The first rows of a table, by column; raises TaskFileError where it cannot be read."""
    names = {*column_names(str(file))}
    table = next(table_blocks(str(file), LOOKED_AT, wanted=names), ({}, [], ""))[0]
    return {name: list(cells) for name, cells in table.items()}


def has_header(file: Path) -> bool:
    """Whether the first line of a file of separated values names columns, rather than being a row."""
    suffix = suffix_of(file)
    separator = separator_of(str(file), suffix, frozenset())
    first, *others = [cells_of(line, separator) for line in islice(lines_of(str(file)), 3)] or [[]]
    if len({*first}) < len(first) or any(NUMBER.fullmatch(cell.strip()) for cell in first):
        return False
    if any({*TEXTS, "id", "label"} & {cell.strip().casefold()} for cell in first):
        return True
    return bool(others) and all(len(cell) <= 40 and len(words(cell)) <= 5 for cell in first)


def without_header(file: Path) -> list[list[str]]:
    """The cells of the first lines of a file without a header."""
    return [line.split("\t") for line in islice(lines_of(str(file)), LOOKED_AT)]


def words(text: str) -> list[str]:
    """Words between spaces; of languages that have no spaces each sign."""
    return _IDEOGRAPH.findall(text) or text.split()


def texts(cells: Sequence[Any]) -> list[str]:
    """The cells that are not empty, as texts."""
    return [text for cell in cells if (text := cell_text(cell).strip())]


def are_texts(name: str, cells: Sequence[Any]) -> bool:
    """Whether a column has running text."""
    if any(isinstance(cell, list | dict) for cell in cells[:100]):
        return False
    found = texts(cells)
    if not found or sum(bool(_LETTER.search(text)) for text in found) * 2 < len(found):
        return False
    length = sum(len(words(text)) for text in found) / len(found)
    varied = len({*found}) > min(20, len(found) / 2)
    return length >= 4 or (varied and length >= 2 and _TEXT_NAMES.fullmatch(name.strip()) is not None)


def are_numbers(cells: Sequence[Any]) -> bool:
    """Whether all cells that are not empty are numbers."""
    found = texts(cells)
    return bool(found) and all(map(NUMBER.fullmatch, found))


def are_truths(cells: Sequence[Any]) -> bool:
    """Whether all cells are 0 or 1, however they are written."""
    found = {plain(text) for text in texts(cells)}
    return bool(found) and found <= {"0", "1", "true", "false"}


def are_whole(cells: Sequence[Any]) -> bool:
    return are_numbers(cells) and all(plain(text).lstrip("-").isdigit() for text in texts(cells))


def distinct(cells: Sequence[Any]) -> list[str]:
    """The different cells that are not empty: numbers by size, texts in order of the alphabet."""
    found = {plain(text) for text in texts(cells)}
    return sorted(found, key=float) if are_numbers(cells) else sorted(found)
