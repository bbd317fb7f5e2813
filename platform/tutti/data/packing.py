"""Packing: which rows lie end to end in one sequence, so that batches of any rows have one shape and no padding."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

_SIMILAR = 0.06  # lengths that differ by this share at most are interchangeable; half of it is not used


@dataclass(frozen=True, eq=False)
class Packing:
    """How the rows of a task are divided into packed sequences, with other rows in each epoch.

    Rows of similar length are interchangeable: a sequence has as many of each length in every epoch, and about the
    same share of all lengths as the task.

    Attributes:
        lengths: ``(rows,)`` of each row, rounded up to that of the longest row that may take its place.
        place_of: ``(rows,)`` the sequence of the i-th longest row.
        tokens: of every sequence, the few after its last row included.
        rows: most rows of a sequence.
        width: tokens of the longest row.
        sequences: their number.
    """

    lengths: np.ndarray
    place_of: np.ndarray
    tokens: int
    rows: int
    width: int
    sequences: int

    @classmethod
    def of(
        cls, lengths: np.ndarray, *, rows: int, max_tokens: int | None, multiple: int = 1, world: int = 1
    ) -> Packing:
        """Divides rows into as few sequences of as similar a length as a greedy rule finds: the longest row left goes
        to the sequence that has the fewest tokens (LPT, Graham 1969).

        Args:
            lengths: ``(rows,)`` tokens of each row.
            rows: the mean number of rows of a sequence, where ``max_tokens`` is None.
            max_tokens: of a sequence; where a row is longer, its length takes the place of it.
            multiple: the tokens of a sequence are rounded up to a multiple of this.
            world: the number of sequences is a multiple of this.
        """
        rounded = _rounded(lengths)
        budget = max(int(lengths.mean() * rows) if max_tokens is None else max_tokens, int(lengths.max()))
        budget = -(-budget // multiple) * multiple if max_tokens is None else budget
        in_order = np.sort(rounded)[::-1]
        sequences = world * -(-int(rounded.sum()) // (budget * world))
        while True:
            place_of, tokens = _dealt(in_order, sequences)
            if tokens <= budget or sequences >= len(lengths):
                break
            sequences += world * max(sequences // (200 * world), 1)
        tokens = min(-(-tokens // multiple) * multiple, max(budget, tokens))
        most = int(np.bincount(place_of).max())
        return cls(rounded, place_of, tokens, most, int(lengths.max()), sequences)

    def divide(self, generator: np.random.Generator) -> list[np.ndarray]:
        """The rows of each sequence of an epoch."""
        order = generator.permutation(len(self.lengths))
        order = order[np.argsort(-self.lengths[order], kind="stable")]
        by_sequence = np.argsort(self.place_of, kind="stable")
        counts = np.bincount(self.place_of, minlength=self.sequences)
        return np.split(order[by_sequence], counts.cumsum()[:-1])


def _rounded(lengths: np.ndarray) -> np.ndarray:
    """Lengths that differ by _SIMILAR at most, as the longest of them."""
    values, places = np.unique(lengths, return_inverse=True)
    longest = np.empty_like(values)
    top = 0
    for index, value in reversed([*enumerate(values.tolist())]):
        if value < top * (1 - _SIMILAR) or not top:
            top = value
        longest[index] = top
    return longest[places].astype(np.int64)


def _dealt(lengths: np.ndarray, sequences: int) -> tuple[np.ndarray, int]:
    """The sequence of each row, and the tokens of the longest sequence."""
    heap = [(0, index) for index in range(sequences)]
    place_of = np.empty(len(lengths), dtype=np.int64)
    for row, length in enumerate(lengths.tolist()):
        tokens, index = heap[0]
        place_of[row] = index
        heapq.heapreplace(heap, (tokens + length, index))
    return place_of, max(tokens for tokens, _ in heap)
