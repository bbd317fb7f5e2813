"""Tables with named columns: CSV (RFC 4180), tab-separated values (with a header, no quoting), JSON Lines, Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pandas import DataFrame

from tutti.errors import Fault, TaskFileError, first_line, nearest
from tutti.files import whole_file, write_whole
from tutti.tasks.layouts.reading import (
    UNREADABLE,
    FileSource,
    cell_text,
    check_text,
    checked_frame,
    existing_file,
    raise_any,
)
from tutti.tasks.layouts.tabs import blocks_of, lines_of, split_columns, write_lines

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
_SPLIT_KEYS = {"group": "split.group", "fold": "split.fold_column"}  # which name these columns
_Block = tuple[Mapping[str, Sequence[Any]], Sequence[int], str]  # columns, places of the rows, unit of the places


@dataclass(frozen=True)
class Table(FileSource):
    """The layouts described by the module. The suffix selects one: .csv, .tsv, .jsonl or .json, .parquet.

    Attributes:
        id: name of the id column. None for the column ``id`` of rows to predict, where the table has one, and otherwise
            for the zero-based row number.
        text: name of the text column.
        text_b: name of the second text's column; None for single texts.
        label: name of the label column.
        group, fold: names of the columns of groups and folds in labelled rows; None where there are none.
        absent: name of a column that the first row lacks. ``blocks`` refuses rows of JSON Lines that have it, whose
            values would be lost; None to pass over such columns.
    """

    id: str | None = None
    text: str = "text"
    text_b: str | None = None
    label: str = "label"
    absent: str | None = None
    group: str | None = None
    fold: str | None = None

    def read(self, source: str, *, labelled: bool, numbers: bool = False) -> DataFrame:
        names = (self if labelled else self.with_ids(source)).names(labelled=labelled)
        columns, places, place = next(_blocks(source, None, wanted=set(names.values())))
        names = without_id(names, columns) if labelled else names
        return frame_of(columns, names, origin=source, places=places, place=place, numbers=numbers)

    def further_columns(self, source: str) -> dict[str, Sequence[object]]:
        further = set(column_names(source)) - set(self.names(labelled=True).values()) - {""}
        try:
            columns = next(_blocks(source, None, wanted=further))[0] if further else {}
        except TaskFileError:  # rows of JSON Lines that lack some of these keys
            return {}
        return {name: columns[name] for name in columns if name in further}

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        first, names = 0, self.names(labelled=False)
        wanted = {*names.values(), *([self.absent] if self.absent else [])}
        for columns, places, place in _blocks(source, rows, wanted=wanted):
            yield frame_of(columns, names, origin=source, places=places, place=place, first_row=first, unique=False)
            first += len(places)

    def with_ids(self, source: str) -> Table:
        """The layout with the table's column ``id`` as its ids, if nothing else names it. All rows have it, or none.

        A submission with row numbers in their place would be of other rows, and no check could tell.
        """
        if self.id is not None or "id" in (self.text, self.text_b):
            return self
        return replace(self, id="id") if "id" in column_names(source) else replace(self, absent="id")

    def names(self, *, labelled: bool) -> dict[str, str]:
        """Maps our column names to those of the table; columns that are not used are left out."""
        theirs = {"id": self.id, "text": self.text, "text_b": self.text_b}
        if labelled:
            theirs |= {"label": self.label, "group": self.group, "fold": self.fold}
        return {ours: name for ours, name in theirs.items() if name is not None}

    def write(self, rows: DataFrame, path: Path) -> None:
        names = replace(self, group=None, fold=None).names(labelled=True)
        table = rows[list(names)].rename(columns=names)
        match _suffix(str(path)):
            case ".csv":
                text = io.StringIO(newline="")
                writer = csv.writer(text)
                writer.writerows([list(table.columns), *table.itertuples(index=False, name=None)])
                write_whole(path, text.getvalue())
            case ".tsv":
                write_lines(path, [list(table.columns), *table.itertuples(index=False, name=None)])
            case ".parquet":
                with whole_file(path) as temporary:
                    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), temporary)
            case _:
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_dict("records")]
                write_whole(path, "".join(lines))


def column_names(source: str) -> list[str]:
    """The names of a table's columns; for JSON Lines, the keys of the first row.

    Raises:
        TaskFileError: where the file cannot be read.
    """
    return list(next(_blocks(source, 1, wanted=frozenset()), ({}, [], ""))[0])


def without_id(names: Mapping[str, str], table: Collection[str]) -> dict[str, str]:
    """The names without that of an id column that a table lacks. Only rows to predict need ids of their own."""
    return {ours: name for ours, name in names.items() if ours != "id" or name in table}


def frame_of(
    table: Mapping[str, Sequence[Any]],
    names: Mapping[str, str],
    *,
    origin: str,
    places: Sequence[int],
    place: str,
    numbers: bool = False,
    first_row: int = 0,
    unique: bool = True,
) -> DataFrame:
    """The columns listed in ``names``, under our names and as str, checked by ``checked_frame``.

    Args:
        first_row: index of the first row, used as its id where there is no id column.

    Raises:
        TaskFileError: naming each missing column with the most similar one, or each faulty row.
    """
    faults = [
        Fault(
            origin,
            f"have the column {name!r} ({_SPLIT_KEYS.get(column, f'columns.{column}')})",
            f"the columns {', '.join(table) or 'none'}",
            _other_separator(origin, table, name)
            or nearest(
                name,
                [other for other in table if other not in names.values()],
                otherwise="name a column that it has"
                if column in _SPLIT_KEYS
                else "rename the column" + (", or set `columns:` (layouts table and hub)" if unique else ""),
            ),
        )
        for column, name in names.items()
        if name not in table
    ]
    raise_any(faults, origin=origin)
    columns: dict[str, list[str]] = (
        {} if "id" in names else {"id": [str(first_row + row) for row in range(len(places))]}
    )
    for column, name in names.items():
        columns[column] = []
        for number, value in zip(places, table[name], strict=True):
            text = cell_text(value)
            columns[column].append(text)
            if isinstance(value, (list, dict, bytes)):
                got, remedy = f"a {type(value).__name__}", "name a column of texts"
                faults.append(Fault(f"{origin}, {place} {number}", f"have a text or number in {name!r}", got, remedy))
            elif not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
                got, remedy = "half of a surrogate pair", "write the character whole"
                faults.append(Fault(f"{origin}, {place} {number}", f"have valid Unicode in {name!r}", got, remedy))
    return checked_frame(
        columns, origin=origin, places=places, place=place, faults=faults, numbers=numbers, unique=unique
    )


def _other_separator(origin: str, names: Collection[str], wanted: str) -> str:
    """A remedy where the only name looks like a header with another separator; empty where it does not."""
    ours, others = {".csv": ("commas", ";\t|"), ".tsv": ("tabs", ",;|")}.get(Path(origin).suffix.lower(), ("", ""))
    header = next(iter(names), "")
    if len(names) != 1 or not any(separator in header for separator in others):
        return ""
    named = wanted in re.split(f"[{others}]", header)
    return f"separate the columns by {ours}" + ("" if named else f", and name one of them {wanted!r} in the first line")


def _suffix(source: str) -> str:
    suffix = Path(source).suffix.lower()
    if suffix not in SUFFIXES:
        rule = f"end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        got = repr(suffix) if suffix else "no suffix"
        raise TaskFileError(Fault(source, rule, got, "rename the file, or use another layout"))
    return suffix


def _blocks(source: str, limit: int | None, *, wanted: Set[str]) -> Iterator[_Block]:
    """Blocks of so many rows, or one block of all; a table without rows gives one empty block.

    Each row of JSON Lines has all of the keys ``wanted`` that any row before it or of its block has, and the first one
    those of any row. Columns that are not wanted may come without values.
    """
    existing_file(source)
    match _suffix(source):
        case ".csv":
            return _csv_blocks(source, limit)
        case ".tsv":
            return _tsv_blocks(source, limit)
        case ".parquet":
            return _parquet_blocks(source, limit, wanted)
        case _:
            return _json_blocks(source, limit, wanted)


def _csv_blocks(source: str, limit: int | None) -> Iterator[_Block]:
    # Not pandas, whose parser pads short rows, takes a surplus first column as index, and splits at a lone \r.
    check_text(source)
    rows: list[list[str]] = []
    places: list[int] = []
    faults: list[Fault] = []
    header: list[str] = []
    blank: list[int] = []  # lines of an empty cell in a file of one column: rows, unless only such lines follow
    start, yielded = 1, False

    def block() -> _Block:
        raise_any(faults, origin=source)
        columns = {name: [row[index] for row in rows] for index, name in enumerate(header)}
        finished = columns, list(places), "line"
        rows.clear()
        places.clear()
        return finished

    with Path(source).open(encoding="utf-8-sig", newline="\n") as file:
        reader = csv.reader(file, strict=True)
        while True:
            try:
                row = next_of_any_length(reader)
            except csv.Error as error:
                faults.append(_csv_fault(f"{source}, line {start}", error))
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
                rule, remedy = f"have {len(header)} columns like the header", "quote cells that hold a comma"
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


def _csv_fault(what: str, error: csv.Error) -> Fault:
    got, remedy = str(error), "write the file with a CSV library, or quote the cell"
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


def _tsv_blocks(source: str, limit: int | None) -> Iterator[_Block]:
    lines = lines_of(source)
    header = next(lines).split("\t")
    check_names(header, source)
    blocks = [list(lines)] if limit is None else blocks_of(lines, limit)
    first = 2
    for block in chain(blocks, [[]]):
        if block or first == 2:
            remedy = "take tabs and line feeds out of the cells, or write a CSV file"
            rows, places, faults = split_columns(block, header, origin=source, first_line=first, remedy=remedy)
            raise_any(faults, origin=source)
            yield {name: [row[index] for row in rows] for index, name in enumerate(header)}, places, "line"
        first += max(len(block), 1)


def _json_blocks(source: str, limit: int | None, wanted: Set[str]) -> Iterator[_Block]:
    names: dict[str, None] = {}
    head: list[tuple[int, dict[str, Any]]] = []  # the place and the keys of the first row, after its block
    lines, first = lines_of(source), 1
    blocks = [list(lines)] if limit is None else blocks_of(lines, limit)
    for block in blocks:
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        faults: list[Fault] = []
        for number, line in enumerate(block, start=first):
            try:
                row = _decode(line) if line.strip() else None
            except (ValueError, RecursionError) as error:  # also numbers with too many digits, brackets nested too deep
                got = "brackets nested too deep" if isinstance(error, RecursionError) else str(error)
                remedy = "write one row per line, and each key once"
                faults.append(Fault(f"{source}, line {number}", "be one JSON object", got, remedy))
                continue
            if isinstance(row, dict):
                rows.append(row)
                places.append(number)
            elif line.strip():
                got = f"a {type(row).__name__}"
                faults.append(Fault(f"{source}, line {number}", "be one JSON object", got, "write one row per line"))
        first += len(block)
        names |= dict.fromkeys(name for row in rows for name in row)
        due = wanted & names.keys()  # frame_of reports what no row has
        for number, row in chain(head, zip(places, rows, strict=True)):
            for name in sorted(due - row.keys()) if len(row) < len(names) else ():
                remedy = nearest(
                    name, row.keys() - wanted, otherwise="write the key, with null where there is no value"
                )
                got = ", ".join(row) or "none"
                faults.append(Fault(f"{source}, line {number}", f"have the key {name!r} like other rows", got, remedy))
        raise_any(faults, origin=source)
        head = head or [*zip(places[:1], rows, strict=False)]
        if rows or limit is None:
            # Not the others: rows may have any number of keys that no other row has.
            values = {name: [row.get(name) for row in rows] if name in wanted else [] for name in names}
            yield values, places, "line"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, of which json.loads alone would keep the last value of a repeated key."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"the key {Counter(name for name, _ in pairs).most_common(1)[0][0]!r} twice")
    return row


_decode = json.JSONDecoder(object_pairs_hook=_object).decode  # json.loads would make a decoder for each line


def _parquet_blocks(source: str, limit: int | None, wanted: Set[str]) -> Iterator[_Block]:
    try:
        with pq.ParquetFile(source) as file:  # pq.read_table has its own message for repeated names
            names = file.schema_arrow.names
            check_names(names, source)
            read = [name for name in names if name in wanted]
            whole = limit is None or not file.metadata.num_rows
            first = 0
            for table in [file.read(read)] if whole else file.iter_batches(batch_size=limit, columns=read):
                values = {name: table.column(name).to_pylist() if name in wanted else [] for name in names}
                yield values, list(range(first + 1, first + 1 + table.num_rows)), "row"
                first += table.num_rows
    except UNREADABLE as error:
        got = first_line(error)
        raise TaskFileError(Fault(source, "be a Parquet file", got, "write the file again")) from error


def check_names(names: Sequence[str], source: str) -> None:
    """Raises TaskFileError where two columns have the same name; any number may have none, as Excel writes them."""
    if repeated := sorted(name for name, count in Counter(names).items() if name and count > 1):
        got = f"{', '.join(repeated)} twice"
        raise TaskFileError(Fault(source, "have columns of different names", got, "rename one"))
