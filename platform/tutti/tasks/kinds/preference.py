"""Preferences: of the two texts of a row the first is better; each text has a value of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from tutti.errors import Fault
from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.kinds.values import Values, correlation_distance
from tutti.tasks.number_text import shortest

BETTER = "better"
"""The label of every row, as the layout gives it: its first text is the better one."""


class Preference(Values):
    """Labels ``(rows,)`` int64, all 0: the place of the better text. Outputs ``(rows, 2)`` values of both texts.

    Rows to predict may have a single text; the second value is then NaN. Values have no unit: members are brought to
    one scale before they vote (``spreads``). ``distributions`` are those of Bradley and Terry (1952): the probability
    that a text is the better one is the logistic function of the difference of the values.
    """

    name: ClassVar[str] = "preference"
    comparative: ClassVar[bool] = True
    picture: ClassVar[str] = "differences"

    def cell_fault(self, cell: str) -> tuple[str, str, str] | None:
        return None  # the layout gives it to rows that have both texts

    def names_of(self, cells: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
        return BETTER, "worse"

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
        return np.zeros(len(cells), dtype=np.int64)

    def label_faults(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        yield from ()

    def indicators(self, labels: np.ndarray) -> np.ndarray:
        return np.ones((len(labels), 1), dtype=np.float32)

    def fault(self, outputs: np.ndarray, labels: np.ndarray | None, names: Sequence[str]) -> tuple[str, str] | None:
        rows = len(outputs)
        known = np.isfinite(outputs) | (np.isnan(outputs) & (np.arange(outputs.shape[-1]) > 0))
        if outputs.shape != (rows, 2) or not known.all():
            return f"have the values of one or two texts for each of its {rows} rows", f"shape {outputs.shape}"
        if labels is not None and labels.shape != (rows,):
            return f"have labels of shape ({rows},)", f"labels of shape {labels.shape}"
        if labels is not None and np.isnan(outputs).any():
            return "have two texts in each row with a label", "one"
        return None

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        return "one number per text, of which the better one has the higher"

    def guess(self, labels: np.ndarray, outputs: int) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(len(labels), 2)).astype(np.float32)

    def spell(self, decided: np.ndarray, names: Sequence[str]) -> list[Any]:
        """The value of a single text, or of two by their names."""
        pairs = super().spell(decided, names)
        single = np.isnan(decided[:, 1])
        return [shortest(row[0]) if one else pair for row, pair, one in zip(decided, pairs, single, strict=True)]

    def cells(self, decided: np.ndarray, names: Sequence[str]) -> list[str]:
        return [BETTER] * len(decided)

    def text(self, decided: Any, names: Sequence[str], *, exact: bool = False) -> str:
        if np.ndim(decided) == 0:
            return "the first text is better"
        return super().text(decided[: 2 - bool(np.isnan(decided[1]))], names, exact=exact)

    def wrong(self, decided: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return differences(decided) <= 0

    def loss(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        """The logistic loss of pairs."""
        return float(np.logaddexp(0, -differences(outputs)).mean())

    def difference(self, first: np.ndarray, second: np.ndarray) -> float:
        """1 minus the correlation of the values of all texts."""
        known = ~np.isnan(first)
        return correlation_distance(first[known], second[known]) if known.sum() > 1 else 0.0

    def disagreement(self, votes: np.ndarray) -> np.ndarray:
        """The standard deviation over members of the difference of a row's values, on one scale."""
        return np.asarray(differences(votes / spreads(votes)).std(axis=0))

    def same(self, votes: np.ndarray) -> np.ndarray:
        signs = np.sign(differences(votes))
        return np.asarray((signs == signs[0]).all(axis=0))

    def strata(self, labels: np.ndarray) -> np.ndarray:
        return np.zeros(len(labels), dtype=np.int64)

    def distributions(self, outputs: np.ndarray) -> np.ndarray:
        first = 1 / (1 + np.exp(-differences(outputs)))
        return np.stack([first, 1 - first], axis=-1)

    def truths(self, labels: np.ndarray) -> np.ndarray:
        return labels


def differences(values: np.ndarray) -> np.ndarray:
    """``(..., rows, 2)`` values to ``(..., rows)`` float64: how much more the first text has than the second."""
    return np.asarray(values[..., 0] - values[..., 1].astype(np.float64))


def spreads(votes: np.ndarray) -> np.ndarray:
    """``(members, 1, 1)``: the unit of each member's values, the root of the mean squared difference within a pair.

    Only differences within pairs are learnt, so that a member's unit is as arbitrary as its zero: it grows with the
    epochs, and is another one under the margin loss. Without a common unit, overconfident members would decide.

    Args:
        votes: ``(members, rows, 2)``, of pairs.
    """
    square = np.square(differences(votes)).mean(axis=1)
    return np.sqrt(np.where(square > 0, square, 1))[:, None, None].astype(np.float32)
