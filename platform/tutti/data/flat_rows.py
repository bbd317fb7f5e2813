"""The rows of a part as flat arrays, of which batches are made; and rows that were just tokenized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

import numpy as np

from tutti.data.choices import CANDIDATES
from tutti.data.long_texts import WINDOWS
from tutti.data.token_units import PLACES

SHARD = 1024
"""Rows to predict that are tokenized, sorted by length, and predicted together. The same on every machine and in every
bundle, so that the results depend neither on the number of workers nor on what predicts."""

MAX_TOKENS = {"cpu": 1024, "cuda": 32768}
"""Of a batch to predict, with padding: fits a core's caches, or occupies a GPU."""


class FlatRows(Protocol):
    """What batches and predictions need of rows. Index i is the same row in all attributes; see ``EncodedPart``."""

    @property
    def lengths(self) -> np.ndarray: ...

    @property
    def pad_token_id(self) -> int: ...

    @property
    def targets(self) -> np.ndarray | None: ...

    @property
    def swapped(self) -> FlatRows | None: ...

    @property
    def most_units(self) -> int: ...

    @property
    def flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]: ...

    @property
    def units(self) -> tuple[np.ndarray, np.ndarray] | None: ...

    @property
    def windows(self) -> np.ndarray | None: ...

    @property
    def candidates(self) -> np.ndarray | None: ...

    def batch_lengths(self, *, apart: bool, multiple: int = 1) -> np.ndarray: ...


class ListColumns:
    """Gives ``FlatRows`` what columns of lists hold, and the lengths of their inputs in batches."""

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """All values of a column of lists, ``(values,)``, and each row's start, ``(rows + 1,)`` int64; None without."""
        raise NotImplementedError

    @cached_property
    def flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """All tokens ``(tokens,)``, each input's start ``(inputs + 1,)``, all token types ``(tokens,)`` or None.

        An input is a row or, with ``windows``, a window of one. Read only once, however often the rows are evaluated.
        Token types are None if all are 0, as with single texts, since encoders default to 0.
        """
        tokens, types, windows = map(self.column, ("input_ids", "token_type_ids", WINDOWS))
        assert tokens is not None
        ids, starts = tokens
        if self.windows is not None and windows is not None:
            starts = np.append(0, windows[0]).cumsum(dtype=np.int64)
        return ids, starts, types[0] if types is not None and types[0].any() else None

    @cached_property
    def units(self) -> tuple[np.ndarray, np.ndarray] | None:
        """``(units, 3)`` int32 of ``PLACES``, and each row's start ``(rows + 1,)``; None for rows without tags."""
        columns = [column for name in PLACES if (column := self.column(name)) is not None]
        return (np.stack([values for values, _ in columns], axis=1), columns[0][1]) if columns else None

    @cached_property
    def windows(self) -> np.ndarray | None:
        """``(rows,)`` int64, number of windows of each row; None if every row is one input."""
        if (windows := self.column(WINDOWS)) is None:
            return None
        counts = np.diff(windows[1])
        return counts if (counts > 1).any() else None

    @cached_property
    def candidates(self) -> np.ndarray | None:
        """``(rows,)`` int32, number of the candidates that have letters in each row; None in other tasks."""
        found = self.column(CANDIDATES)
        return None if found is None else found[0]

    @cached_property
    def widths(self: FlatRows) -> np.ndarray:
        """``(rows,)`` number of tokens of the longest input of each row."""
        if self.windows is None:
            return self.lengths
        return np.maximum.reduceat(np.diff(self.flat[1]), self.windows.cumsum() - self.windows)

    def batch_lengths(self: FlatRows, *, apart: bool, multiple: int = 1) -> np.ndarray:
        """``(rows,)`` number of tokens that each row takes in a batch, before padding to longer rows.

        In a batch of such rows, padding included, no row takes more than the longest one by this count: each window
        counts as much as the widest of the part, or each row has as many as any, whichever is less in all.

        Args:
            apart: whether a pair is two inputs of equal width, ``[CLS] a [SEP]`` and ``[CLS] b [SEP]``.
            multiple: that widths of batches are rounded up to; it counts where rows have several windows.
        """
        windows = self.windows
        if windows is None and not apart:
            return self.lengths
        _, starts, types = self.flat
        widths = np.diff(starts)
        if apart and types is not None:
            seconds = np.diff(np.append(0, (types == 1).cumsum())[starts])
            widths = 2 * np.maximum(widths - seconds, seconds + 1)
        if windows is None:
            return widths
        first = windows.cumsum() - windows
        widest = -(-int(widths.max()) // multiple) * multiple
        by_widest = np.where(windows > 1, windows * widest, widths[first])
        by_count = -(-np.maximum.reduceat(widths, first) // multiple) * multiple * int(windows.max())
        return by_count if by_count.sum() < by_widest.sum() else by_widest


@dataclass(frozen=True, eq=False)
class TokenizedRows(ListColumns):
    """Rows without labels, from the columns of ``tokenized``."""

    columns: Mapping[str, Sequence[Any]]
    pad_token_id: int
    swapped: FlatRows | None = None
    targets: None = None

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.array(self.columns["length"], dtype=np.int32)

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        if (rows := self.columns.get(name)) is None:
            return None
        starts = np.concatenate([[0], list(map(len, rows))]).cumsum(dtype=np.int64)
        return np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(starts[-1])), starts

    @property
    def most_units(self) -> int:
        return 0 if self.units is None else int(np.diff(self.units[1]).max(initial=1))
