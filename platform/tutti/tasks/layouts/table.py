"""Tables with named columns: CSV (RFC 4180, with a header), JSON Lines, Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pandas import DataFrame

from tutti.errors import Fault, TaskFileError, nearest
from tutti.files import sha256_of, whole_file, write_whole
from tutti.tasks.layouts.reading import checked_frame, existing_file, file_text, raise_any
from tutti.tasks.layouts.tabs import split_lines


@dataclass(frozen=True)
class Table:
    """See the module. The file's suffix says which of the three it is: .csv, .jsonl or .json, .parquet.

    Attributes:
        id: name of the id column; none for the row number, counted from 0.
        text: name of the text column.
        text_b: name of the second text's column; none for single texts.
        label: name of the label column.
    """

    id: str | None = None
    text: str = "text"
    text_b: str | None = None
    label: str = "label"

    def origin(self, source: str) -> str:
        return source

    def fingerprint(self, source: str) -> str:
        return sha256_of(existing_file(source))

    def read(self, source: str, *, labelled: bool, numbers: bool = False) -> DataFrame:
        existing_file(source)
        match _suffix(source):
            case ".csv":
                found, places, place = *_csv_columns(source), "line"
            case ".parquet":
                found, place = _parquet_columns(source), "row"
                places = list(range(1, 1 + len(next(iter(found.values()), []))))
            case _:
                found, places, place = *_json_columns(source), "line"
        names = self.names(labelled=labelled)
        return frame_of(found, names, origin=source, places=places, place=place, numbers=numbers)

    def names(self, *, labelled: bool) -> dict[str, str]:
        """Our column names to those of the table, without those that are not asked for."""
        theirs = {"id": self.id, "text": self.text, "text_b": self.text_b, "label": self.label if labelled else None}
        return {ours: name for ours, name in theirs.items() if name is not None}

    def write(self, rows: DataFrame, path: Path) -> None:
        names = self.names(labelled=True)
        table = rows[list(names)].rename(columns=names)
        match _suffix(str(path)):
            case ".csv":
                text = io.StringIO(newline="")
                writer = csv.writer(text)
                writer.writerows([list(table.columns), *table.itertuples(index=False, name=None)])
                write_whole(path, text.getvalue())
            case ".parquet":
                with whole_file(path) as temporary:
                    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), temporary)
            case _:
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_dict("records")]
                write_whole(path, "".join(lines))


def frame_of(
    found: Mapping[str, Sequence[Any]],
    names: Mapping[str, str],
    *,
    origin: str,
    places: Sequence[int],
    place: str,
    numbers: bool,
) -> DataFrame:
    """The columns that ``names`` asks for, by our names and as str, checked as ``checked_frame`` does.

    Raises:
        TaskFileError: naming each missing column with the nearest one there, or each faulty row.
    """
    faults = [
        Fault(
            origin,
            f"have the column {name!r} (columns.{ours})",
            f"the columns {', '.join(found) or 'none'}",
            nearest(name, found, otherwise="set `columns:` to the names in the file"),
        )
        for ours, name in names.items()
        if name not in found
    ]
    raise_any(faults, origin=origin)
    columns: dict[str, list[str]] = {} if "id" in names else {"id": [str(row) for row in range(len(places))]}
    for ours, name in names.items():
        columns[ours] = []
        for where, value in zip(places, found[name], strict=True):
            text = "" if value is None else str(value)
            columns[ours].append(text)
            if isinstance(value, (list, dict, bytes)):
                got, remedy = f"a {type(value).__name__}", "name a column of texts"
                faults.append(Fault(f"{origin}, {place} {where}", f"have a text or number in {name!r}", got, remedy))
            elif not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
                got, remedy = "half of a surrogate pair", "write the character whole"
                faults.append(Fault(f"{origin}, {place} {where}", f"have valid Unicode in {name!r}", got, remedy))
    return checked_frame(columns, origin=origin, places=places, place=place, faults=faults, numbers=numbers)


def _suffix(source: str) -> str:
    suffix = Path(source).suffix.lower()
    if suffix not in (".csv", ".jsonl", ".json", ".parquet"):
        rule = "end in .csv, .jsonl, .json or .parquet"
        raise TaskFileError(Fault(source, rule, repr(suffix), "rename the file, or use another layout"))
    return suffix


def _csv_columns(source: str) -> tuple[dict[str, list[str]], list[int]]:
    # Not pandas: its parser fills short rows up, takes a surplus first column as index, and splits at a lone \r.
    reader = csv.reader(io.StringIO(file_text(source), newline=""), strict=True)
    rows: list[list[str]] = []
    places: list[int] = []
    faults: list[Fault] = []
    header: list[str] = []
    start = 1
    try:
        with _cells_of_any_length():
            for row in reader:
                if not header:
                    header = row
                    _check_names(header, source)
                elif row and len(row) != len(header):
                    rule, remedy = f"have {len(header)} columns like the header", "quote cells that hold a comma"
                    faults.append(Fault(f"{source}, line {start}", rule, str(len(row)), remedy))
                elif row:
                    rows.append(row)
                    places.append(start)
                start = reader.line_num + 1
    except csv.Error as error:
        remedy = "write the file with a CSV library, or quote the cell"
        faults.append(Fault(f"{source}, line {start}", "be CSV as RFC 4180 has it", str(error), remedy))
    raise_any(faults, origin=source)
    return {name: [row[index] for row in rows] for index, name in enumerate(header)}, places


@contextmanager
def _cells_of_any_length() -> Iterator[None]:
    """Lifts the csv module's limit of 131,072 characters a cell, which holds for the whole process, for a while."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _json_columns(source: str) -> tuple[dict[str, list[Any]], list[int]]:
    rows: list[dict[str, Any]] = []
    places: list[int] = []
    faults: list[Fault] = []
    for number, line in enumerate(split_lines(file_text(source)), start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:  # a number of too many digits, brackets nested too deep
            got = "brackets nested too deep" if isinstance(error, RecursionError) else str(error)
            faults.append(Fault(f"{source}, line {number}", "be one JSON object", got, "write one row per line"))
            continue
        if isinstance(row, dict):
            rows.append(row)
            places.append(number)
        elif line.strip():
            got = f"a {type(row).__name__}"
            faults.append(Fault(f"{source}, line {number}", "be one JSON object", got, "write one row per line"))
    raise_any(faults, origin=source)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}, places


def _parquet_columns(source: str) -> dict[str, list[Any]]:
    try:
        table = pq.ParquetFile(source).read()  # pq.read_table refuses two columns of one name in its own words
    except (pa.ArrowInvalid, OSError) as error:
        got = str(error).splitlines()[0]
        raise TaskFileError(Fault(source, "be a Parquet file", got, "write the file again")) from error
    _check_names(table.column_names, source)
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _check_names(names: Sequence[str], source: str) -> None:
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise TaskFileError(Fault(source, "have columns of different names", f"{', '.join(twice)} twice", "rename one"))
