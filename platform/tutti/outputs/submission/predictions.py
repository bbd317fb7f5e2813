"""Predictions of new rows: shards that survive a crash, and the file that is assembled from them."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from tutti.errors import Fault, StorageError, StudyError, first_line
from tutti.files import below_file_fault, resolved, storage_faults, strays, strays_of, whole_file, write_whole

SUFFIXES = (".csv", ".jsonl", ".json", ".parquet")
_MANIFEST, _LOCK = "manifest.json", "lock"
_SHARD = re.compile(r"\d{6,}\.parquet")


def check_out(out: Path, rows_file: Path) -> None:
    """Checks that predictions can be written to ``out``.

    Raises:
        StudyError: if ``out`` is a folder, the file of the rows or below a file, or its suffix names no known format.
        StorageError: if the file system does not accept the name.
    """
    if resolved(out) == resolved(rows_file):
        raise StudyError(Fault(f"--out {out}", "be another file than --input", "the same", "name another file"))
    if out.suffix.lower() not in SUFFIXES:
        rule = f"end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        got = repr(out.suffix) if out.suffix else "no suffix"
        raise StudyError(Fault(f"--out {out}", rule, got, "name the file so"))
    with storage_faults(out):
        is_folder = out.is_dir()
        below_file = below_file_fault(out)
    if is_folder:
        raise StudyError(Fault(f"--out {out}", "be a file", "a folder", "name a file in it"))
    if below_file:
        raise StudyError(below_file)


class Shards:
    """The shards of one file of predictions, in a folder beside it that is removed once the file is complete.

    Args:
        out: the file.
        rows: the number of input rows.
        size: rows per shard; the last one may have fewer.
        manifest: everything the predictions depend on. Shards with another manifest are discarded.
    """

    def __init__(self, out: Path, *, rows: int, size: int, manifest: Mapping[str, Any]) -> None:
        self._out, self._rows, self._size = out, rows, size
        self._manifest = json.loads(json.dumps({"format": 2, "rows": rows, "shard": size, **manifest}))
        self.folder = out.with_name(f"{out.name}.shards")
        self.precision: str | None = None

    @property
    def count(self) -> int:
        return -(-self._rows // self._size)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder, creating it or keeping the shards of an earlier run with the same manifest.

        Raises:
            StudyError: if another process holds the lock, or the folder has files that Tutti did not write.
            StorageError: if the folder cannot be read or written.
        """
        with storage_faults(self.folder):
            names = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
            names -= {path.name for path in strays(self.folder)}  # a kill while the manifest was written leaves some
            ours = {_LOCK}
            if self._previous():
                ours |= {_MANIFEST, *filter(_SHARD.fullmatch, names)}
            if foreign := names - ours:
                rule, got = "be new, or hold the shards of an earlier run", min(foreign)
                raise StudyError(Fault(str(self.folder), rule, got, "move it away, or name another file with --out"))
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / _LOCK)
            try:
                lock.acquire(timeout=0)
            except Timeout as error:  # an OSError, which storage_faults would report as a StorageError
                rule, remedy = "be written by one process at a time", "wait for the other to end, or stop it"
                raise StudyError(Fault(str(self._out), rule, "another that writes it", remedy)) from error
        try:
            with storage_faults(self.folder):
                self._sweep()
            yield
        finally:
            with suppress(OSError):
                if [path.name for path in self.folder.iterdir()] == [_LOCK]:  # nothing that a later run could use
                    shutil.rmtree(self.folder)
            lock.release()

    def _sweep(self) -> None:
        """Removes shards of an earlier run with another manifest, and files that a kill left incomplete."""
        previous = self._previous()
        self.precision = previous.pop("precision", None)
        if previous != self._manifest:
            self.precision = None
            self._clear()
        for path in (*strays(self.folder), *strays_of(self._out)):
            path.unlink()

    def _previous(self) -> dict[str, Any]:
        """The manifest of an earlier run; empty where there is none, or another program's."""
        try:
            found = json.loads((self.folder / _MANIFEST).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) and {"format", "rows", "shard", "precision"} <= found.keys() else {}

    def _clear(self) -> None:
        """Removes all but the lock; the manifest last, since shards without one are taken for somebody else's files."""
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == _MANIFEST):
            if path.name != _LOCK:
                path.unlink()

    def begin(self, precision: str) -> None:
        """Writes the manifest; call it before the first shard is written."""
        write_whole(self.folder / _MANIFEST, json.dumps({**self._manifest, "precision": precision}, indent=1))

    def done(self) -> set[int]:
        """Numbers of the shards that are complete."""
        return {number for number in range(self.count) if self._is_complete(number)}

    def write(self, number: int, table: pa.Table) -> None:
        """Writes one shard.

        Raises:
            StudyError: if it does not have the rows that ``rows`` and ``size`` leave it.
            StorageError: if it cannot be written.
        """
        if table.num_rows != (expected := self._rows_of(number)):
            rule, got = f"have {expected} rows in shard {number}, as when it was first read", str(table.num_rows)
            raise StudyError(Fault("--input", rule, got, "leave the file as it is, and run the command again"))
        with whole_file(self._file(number)) as temporary:
            pq.write_table(table, temporary, compression="zstd")

    def finish(self) -> None:
        """Streams all shards into the file, which is written atomically, and removes them.

        Raises:
            StorageError: if the file cannot be written, or a shard is damaged.
        """
        write = {".parquet": _write_parquet, ".csv": _write_csv}.get(self._out.suffix.lower(), _write_lines)
        with whole_file(self._out) as temporary:
            write(temporary, (self._read(number) for number in range(self.count)))
        with suppress(OSError):  # the file is whole
            self._clear()
            shutil.rmtree(self.folder)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.parquet"

    def _rows_of(self, number: int) -> int:
        return max(min(self._size, self._rows - number * self._size), 0)

    def _is_complete(self, number: int) -> bool:
        try:
            return pq.read_metadata(self._file(number)).num_rows == self._rows_of(number)
        except (OSError, pa.ArrowInvalid):
            return False

    def _read(self, number: int) -> pa.Table:
        try:
            return pq.read_table(self._file(number), partitioning=None)
        except (OSError, pa.ArrowInvalid) as error:
            got, remedy = first_line(error), "remove it, and run the command again"
            raise StorageError(Fault(str(self._file(number)), "be as it was written", got, remedy)) from error


def _write_parquet(path: Path, tables: Iterator[pa.Table]) -> None:
    first = next(tables)
    with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def _write_csv(path: Path, tables: Iterator[pa.Table]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        for number, table in enumerate(tables):
            if not number:
                writer.writerow(table.column_names)
            writer.writerows(zip(*(_texts(column) for column in table.columns), strict=True))


def _write_lines(path: Path, tables: Iterator[pa.Table]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for table in tables:
            numbers = [pa.types.is_floating(kind) for kind in table.schema.types]
            columns = [
                [float(text) for text in _texts(column)] if number else _texts(column)
                for column, number in zip(table.columns, numbers, strict=True)
            ]
            for row in zip(*columns, strict=True):
                file.write(json.dumps(dict(zip(table.column_names, row, strict=True)), ensure_ascii=False) + "\n")


def _texts(column: pa.ChunkedArray) -> list[str]:
    """The values as text; a float32 gets as many digits as it needs to be read back exactly."""
    return pc.cast(column, pa.string()).to_pylist()
