"""Texts as labels: what a model should write after a prompt, such as the answer to an instruction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from tutti.errors import Fault
from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.kinds.values import Value, tenths

_SHOWN = 60  # characters of a text for a reader


class Text(Value):
    """Labels and outputs ``(rows,)`` object arrays of str; decisions are the outputs."""

    name: ClassVar[str] = "text"
    generative: ClassVar[bool] = True
    picture: ClassVar[str] = "lengths"

    def cell_fault(self, cell: str) -> tuple[str, str, str] | None:
        if cell.strip():
            return None
        return "have a text to be learnt", "an empty one", "write the answer, or take the row out"

    def plain(self, cell: str) -> str:
        return cell

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
        return texts_array(cells)

    def label_faults(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        yield from ()

    def indicators(self, labels: np.ndarray) -> np.ndarray:
        """The tenths of the texts' lengths."""
        return tenths(self.strata(labels))

    def fault(self, outputs: np.ndarray, labels: np.ndarray | None, names: Sequence[str]) -> tuple[str, str] | None:
        for what, texts in (("texts", outputs), ("labels that are texts", labels)):
            if texts is not None and not (
                texts.shape == (len(outputs),) and all(isinstance(one, str) for one in texts)
            ):
                return f"have {what}, one for each of its {len(outputs)} rows", f"{texts.dtype} of shape {texts.shape}"
        return None

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        return "a text per row"

    def guess(self, labels: np.ndarray, outputs: int) -> np.ndarray:
        return np.random.default_rng(0).permutation(labels)

    def decision_text(self, names: Sequence[str], decision: np.ndarray | None) -> str:
        return "the text"

    def spell(self, decided: np.ndarray, names: Sequence[str]) -> list[Any]:
        return [text.strip() for text in decided]

    def cells(self, decided: np.ndarray, names: Sequence[str]) -> list[str]:
        return list(decided)

    def text(self, decided: Any, names: Sequence[str], *, exact: bool = False) -> str:
        line = " ".join(decided.split())
        return line if exact or len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."

    def wrong(self, decided: np.ndarray, labels: np.ndarray) -> np.ndarray:
        pairs = zip(decided, labels, strict=True)
        return np.array([one.split() != other.split() for one, other in pairs], dtype=bool)

    def loss(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        """The share of rows whose text is another."""
        return self.difference(outputs, labels)

    def difference(self, first: np.ndarray, second: np.ndarray) -> float:
        """The share of rows with different texts."""
        return float((first != second).mean()) if len(first) else 0.0

    def disagreement(self, votes: np.ndarray) -> np.ndarray:
        """The share of members who do not write what most of them write."""
        most = [Counter(column).most_common(1)[0][1] for column in votes.T]
        return 1 - np.array(most, dtype=np.float64) / len(votes)

    def same(self, votes: np.ndarray) -> np.ndarray:
        return (votes == votes[0]).all(axis=0)

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """The lengths of the texts."""
        return np.array([len(text) for text in labels], dtype=np.float64)


def texts_array(texts: Sequence[str]) -> np.ndarray:
    """``(texts,)`` object array of str: NumPy's own texts would all be as long as the longest."""
    array = np.empty(len(texts), dtype=object)
    array[:] = list(texts)
    return array
