"""Rows written in JSON: an object per line, or one array of objects."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Set
from itertools import chain
from typing import Any

from tutti.errors import Fault, TaskFileError, nearest
from tutti.tasks.layouts.packed import opened_text
from tutti.tasks.layouts.reading import Block, check_text, raise_any
from tutti.tasks.layouts.tabs import blocks_of, lines_of

_Item = tuple[int, dict[str, Any] | Fault]  # the place of a row, and the row or what is wrong with it
_SHOWN = 5
_HEAD = 4096  # characters that tell what a file is
_RULE = "be JSON Lines, an object per line, or one array of objects"


def json_blocks(source: str, limit: int | None, wanted: Set[str]) -> Iterator[Block]:
    """Blocks of at most so many rows, or one block of all. An array is in memory as a whole.

    Each row has all of the keys ``wanted`` that any row before it or of its block has, and the first one those of any
    row. Columns that are not wanted may come without values.

    Raises:
        TaskFileError: where a row is no object, or lacks such a key.
    """
    check_text(source)
    items, unit = (_items_of_array(source), "row") if _begins_array(source) else (_items_of_lines(source), "line")
    if _has_articles(source):
        items, unit = _items_of_articles(source), "question"
    names: dict[str, None] = {}
    head: list[tuple[int, dict[str, Any]]] = []  # the place and the keys of the first row, after its block
    for block in blocks_of(items, limit):
        rows = [(place, row) for place, row in block if isinstance(row, dict)]
        faults = [fault for _, fault in block if isinstance(fault, Fault)]
        names |= dict.fromkeys(name for _, row in rows for name in row)
        due = wanted & names.keys()  # frame_of reports what no row has
        for number, row in chain(head, rows):
            for name in sorted(due - row.keys()) if len(row) < len(names) else ():
                remedy = nearest(
                    name, row.keys() - wanted, otherwise="write the key, with null where there is no value"
                )
                got = ", ".join(row) or "none"
                faults.append(
                    Fault(f"{source}, {unit} {number}", f"have the key {name!r} like other rows", got, remedy)
                )
        raise_any(faults, origin=source)
        head = head or rows[:1]
        # Not the others: rows may have any number of keys that no other row has.
        values = {name: [row.get(name) for _, row in rows] if name in wanted else [] for name in names}
        yield values, [place for place, _ in rows], unit


def _begins_array(source: str) -> bool:
    with opened_text(source) as file:
        return next((line for line in file if line.strip()), "").lstrip().startswith("[")


def _has_articles(source: str) -> bool:
    """Whether a file is one object of articles with paragraphs and their questions, as SQuAD is published."""
    with opened_text(source) as file:
        head = file.read(_HEAD)
    return head.lstrip().startswith("{") and '"data"' in head and '"paragraphs"' in head


def _items_of_articles(source: str) -> Iterator[_Item]:
    """The questions, each with its context and its answers as the hub's data set has them."""
    with opened_text(source) as file:
        try:
            articles = _decode(file.read())["data"]
            rows = [
                (part["context"], each)
                for article in articles
                for part in article["paragraphs"]
                for each in part["qas"]
            ]
            for number, (context, each) in enumerate(rows, start=1):
                row = {"id": each["id"], "context": context, "question": each["question"]}
                if "answers" in each:
                    answers = each["answers"]
                    keys = ("text", "answer_start")
                    row["answers"] = {key: [one[key] for one in answers] for key in keys}
                yield number, row
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            rule = "have articles with paragraphs, each with context and qas, as SQuAD is published"
            raise TaskFileError(Fault(source, rule, f"{type(error).__name__}: {error}", "correct it there")) from error


def _items_of_lines(source: str) -> Iterator[_Item]:
    for number, line in enumerate(lines_of(source), start=1):
        if not line.strip():
            continue
        try:
            row = _decode(line)
        except (ValueError, RecursionError) as error:  # also numbers with too many digits, brackets nested too deep
            if number == 1:
                _check_no_object_of_many_lines(source)
            remedy = "write one row per line, and each key once"
            yield number, Fault(f"{source}, line {number}", "be one JSON object", _why(error), remedy)
            continue
        if number == 1 and isinstance(row, dict) and row and all(isinstance(cells, dict) for cells in row.values()):
            _check_no_object_of_many_lines(source)
        yield number, _row(row, f"{source}, line {number}", remedy="write one row per line")


def _items_of_array(source: str) -> Iterator[_Item]:
    with opened_text(source) as file:
        try:
            rows = _decode(file.read())
        except (ValueError, RecursionError) as error:
            raise TaskFileError(
                Fault(source, _RULE, _why(error), "correct it there, and write each key once")
            ) from error
    if not rows:
        raise TaskFileError(Fault(source, "have at least one row", "none", "name the file that has the rows"))
    for number, row in enumerate(rows, start=1):
        yield (
            number,
            _row(row, f"{source}, row {number}", remedy="write each row as an object, with its columns as keys"),
        )


def _row(row: Any, what: str, *, remedy: str) -> dict[str, Any] | Fault:
    return row if isinstance(row, dict) else Fault(what, "be one JSON object", f"a {type(row).__name__}", remedy)


def _check_no_object_of_many_lines(source: str) -> None:
    """Refuses a file that is a single object as a whole, such as ``{"data": [...]}``, instead of each of its lines.

    pandas writes columns so, unless it is told otherwise.
    """
    with opened_text(source) as file:
        try:
            whole = _decode(file.read())
        except (ValueError, RecursionError):
            return
    keys = ", ".join(map(repr, [*whole][:_SHOWN])) + (", ..." if len(whole) > _SHOWN else "")
    got, remedy = f"one object, with the keys {keys}", "write the array of its rows alone (pandas: orient='records')"
    raise TaskFileError(Fault(source, _RULE, got, remedy))


def _why(error: Exception) -> str:
    return "brackets nested too deep" if isinstance(error, RecursionError) else str(error)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, of which json.loads alone would keep the last value of a repeated key."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"the key {Counter(name for name, _ in pairs).most_common(1)[0][0]!r} twice")
    return row


_decode = json.JSONDecoder(object_pairs_hook=_object).decode  # json.loads would make a decoder for each line
