"""The interface between a task and the files that store its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pandas import DataFrame

from tutti.tasks.layouts.reading import CellCheck


class Layout(Protocol):
    """A file format for a task's rows. Every implementation is a frozen dataclass of plain settings."""

    def origin(self, source: str) -> str:
        """The full name of ``source`` for messages and records: the file, or the data set with its split."""
        ...

    def fingerprint(self, source: str) -> str:
        """A SHA-256 that changes when the content of ``source`` does.

        Raises:
            TaskFileError: where the source is missing.
        """
        ...

    def read(self, source: str, *, labelled: bool, check: CellCheck | None = None) -> DataFrame:
        """All rows of ``source``, in order and unchanged.

        Args:
            labelled: whether to read labels.
            check: what each label must be, as ``Kind.cell_fault`` says it; None for any text.

        Returns:
            Columns ``id``, ``text``, ``text_b`` (pairs only) and ``label`` (if ``labelled``), all str, and of
            labelled rows ``group`` and ``fold`` where the layout names such columns. Ids are unique, and only texts of
            rows to predict may be empty.

        Raises:
            TaskFileError: with the first faults in the source, and the number of further ones.
        """
        ...

    def class_order(self, source: str) -> Sequence[str]:
        """The labels in the order in which ``source`` itself lists them; empty where it has no such list."""
        ...

    def notices(self, source: str) -> Sequence[str]:
        """What a user may not expect of how ``source``, which can be read, is read: mostly nothing. A sentence each."""
        ...

    def further_columns(self, source: str) -> Mapping[str, Sequence[object]]:
        """The named columns of labelled rows that ``read`` does not return, with a value for each row."""
        ...

    def write(self, rows: DataFrame, path: Path) -> None:
        """Writes labelled rows (columns as returned by ``read``) as a training file, atomically.

        In a text, whitespace that the layout cannot represent becomes spaces.

        Raises:
            StorageError: where the file system refuses.
        """
        ...


class FileLayout(Layout, Protocol):
    """A layout whose sources are files, which may be larger than memory."""

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        """Yields the rows of a file to predict in blocks, as ``read`` does, but ids may be repeated.

        Only one block is in memory at a time. No block is empty or has more than ``rows`` rows.

        Raises:
            TaskFileError: as in ``read``, with the faults of the first block that has any.
        """
        ...
