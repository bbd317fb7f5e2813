"""Documents of text files of any size, read one after another."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tutti.config.pretraining import DocumentEnd
from tutti.errors import Fault, StudyError, first_line
from tutti.files import nearest_file

_COMPRESSED = (".gz", ".zst", ".bz2", ".lz4")


def read_documents(file: Path, *, columns: Sequence[str] = ("text",), end: DocumentEnd = "line") -> Iterator[str]:
    """The documents of a file, stripped, without empty ones, read as a stream.

    The suffix tells the format: ``.csv``, ``.tsv`` (with a header), ``.jsonl``, ``.parquet``, or else plain text; each
    but Parquet may be compressed (``.gz``, ``.zst``, ``.bz2``, ``.lz4``).

    Args:
        columns: of a file with columns, those that hold texts; each cell is a document.
        end: what ends a document in plain text: a line, or a blank line.

    Raises:
        StudyError: if the file is missing, damaged, holds no text or lacks a column.

    Example:
        >>> Path("/tmp/two.txt").write_text("One.\\n\\nTwo\\nlines.\\n") and list(
        ...     read_documents(Path("/tmp/two.txt"), end="blank-line")
        ... )
        ['One.', 'Two\\nlines.']
    """
    if not file.is_file():
        got = "a folder" if file.is_dir() else "no such file"
        raise StudyError(Fault(str(file), "be a text file", got, nearest_file(file, otherwise="correct the path")))
    suffixes = [suffix for suffix in file.suffixes if suffix not in _COMPRESSED]
    readers: dict[str, Callable[..., Iterator[Any]]] = {
        ".csv": _csv,
        ".tsv": partial(_csv, tabs=True),
        ".jsonl": _json_lines,
        ".ndjson": _json_lines,
        ".parquet": _parquet,
    }
    read = readers.get(suffixes[-1] if suffixes else "", _blocks if end == "blank-line" else _lines)
    some = False
    try:
        for text in read(file, columns):
            if isinstance(text, str) and (text := text.strip()):
                some = True
                yield text
    except UnicodeDecodeError as error:
        got, remedy = f"a byte that is not ({error.reason})", "save the file as UTF-8 or leave it out"
        raise StudyError(Fault(str(file), "be UTF-8 text", got, remedy)) from error
    except (OSError, EOFError, ValueError, csv.Error, pa.ArrowException) as error:
        raise StudyError(Fault(str(file), "be readable to its end", first_line(error), "repair the file")) from error
    if not some:
        raise StudyError(Fault(str(file), "hold some text", "an empty file", "leave it out"))


def _open(file: Path) -> io.TextIOWrapper:
    # utf-8-sig drops the mark that some programs put in front; the csv module wants line ends as they are.
    return io.TextIOWrapper(pa.input_stream(str(file), compression="detect"), encoding="utf-8-sig", newline="")


def _lines(file: Path, columns: Sequence[str]) -> Iterator[str]:
    with _open(file) as lines:
        yield from lines


def _blocks(file: Path, columns: Sequence[str]) -> Iterator[str]:
    block: list[str] = []
    for line in _lines(file, columns):
        if line.strip():
            block.append(line.rstrip("\r\n"))
        else:
            yield "\n".join(block)
            block = []
    yield "\n".join(block)


def _csv(file: Path, columns: Sequence[str], *, tabs: bool = False) -> Iterator[Any]:
    csv.field_size_limit(2**31 - 1)  # documents may be long
    with _open(file) as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.DictReader(lines)
        _check_columns(file, columns, rows.fieldnames or ())
        for row in rows:
            yield from (row[column] for column in columns)


def _json_lines(file: Path, columns: Sequence[str]) -> Iterator[Any]:
    for line in _lines(file, columns):
        if line.strip():
            if not isinstance(row := json.loads(line), dict):
                raise ValueError("a line that is no JSON object")
            _check_columns(file, columns, row)
            yield from (row[column] for column in columns)


def _parquet(file: Path, columns: Sequence[str]) -> Iterator[Any]:
    with pq.ParquetFile(file) as rows:
        _check_columns(file, columns, rows.schema_arrow.names)
        for batch in rows.iter_batches(columns=list(columns)):
            for column in columns:
                yield from batch.column(column).to_pylist()


def _check_columns(file: Path, columns: Sequence[str], there: Sequence[str] | dict[str, Any]) -> None:
    if there and (missing := [column for column in columns if column not in there]):
        remedy = "name the columns with texts by --columns"
        raise StudyError(Fault(str(file), f"have the column {missing[0]!r}", ", ".join(there), remedy))
