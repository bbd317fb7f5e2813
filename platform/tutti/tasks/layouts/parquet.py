"""Parquet files, also packed."""

from __future__ import annotations

from collections.abc import Iterator, Set

import pyarrow as pa
import pyarrow.parquet as pq

from tutti.errors import Fault, TaskFileError, first_line
from tutti.tasks.layouts import packed
from tutti.tasks.layouts.reading import Block, check_names

UNREADABLE = (OSError, ValueError, OverflowError, pa.ArrowNotImplementedError, pa.ArrowSerializationError)
"""What damaged Parquet files raise, some when their values become Python's: bytes that are no text, years past 9999."""


def parquet_blocks(source: str, limit: int | None, wanted: Set[str]) -> Iterator[Block]:
    """Blocks of so many rows, or one of all, with values of the columns ``wanted`` alone."""
    try:
        with _parquet_file(source) as file:  # pq.read_table has its own message for repeated names
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


def _parquet_file(source: str) -> pq.ParquetFile:
    if not packed.packing(source):
        return pq.ParquetFile(source)
    with packed.opened(source) as file:
        return pq.ParquetFile(pa.BufferReader(file.read()))
