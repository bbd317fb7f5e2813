"""The seam between a task and the files it is kept in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pandas import DataFrame


class Layout(Protocol):
    """One way to lay a task's rows out in files. Every implementation is a frozen dataclass of plain settings."""

    def origin(self, source: str) -> str:
        """Names ``source`` in full, for messages and records: the file, or the data set with its split."""
        ...

    def fingerprint(self, source: str) -> str:
        """A SHA-256 that changes when the content of ``source`` does.

        Raises:
            TaskFileError: where the source is missing.
        """
        ...

    def read(self, source: str, *, labelled: bool, numbers: bool = False) -> DataFrame:
        """All rows of ``source`` in its order, untouched.

        Args:
            labelled: whether there are labels to read.
            numbers: whether each label must be a number that float32 can hold, as ``reading.number`` reads it.

        Returns:
            Columns ``id``, ``text``, ``text_b`` (pairs only) and ``label`` (if ``labelled``), all str; ids are unique,
            and nothing is empty but texts of rows to predict.

        Raises:
            TaskFileError: with the first faults found in the source, and how many more there are.
        """
        ...

    def write(self, rows: DataFrame, path: Path) -> None:
        """Writes labelled rows (columns as ``read`` returns them) as a training file, whole or not at all.

        Raises:
            TaskFileError: where the layout cannot hold a row.
            StorageError: where the file system refuses.
        """
        ...


class FileLayout(Layout, Protocol):
    """A layout whose sources are files, which may be of any length."""

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        """The rows of a file to predict, so many at a time: as ``read`` gives them, but an id may stand twice.

        Takes memory for one block. No block is empty.

        Raises:
            TaskFileError: as ``read`` does, with the faults of the first block that has any.
        """
        ...
