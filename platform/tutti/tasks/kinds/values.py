"""Numbers as labels: one of each row, or several, of which some may be missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from tutti.errors import Fault
from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.kinds.protocol import Kind
from tutti.tasks.layouts.several import by_columns
from tutti.tasks.number_text import parse_number, shortest

_QUANTILES = 10  # strata of values


class Values(Kind):
    """Labels ``(rows, k)`` float32, NaN where one is missing, and outputs ``(rows, k)``; decisions are the outputs."""

    name: ClassVar[str] = "values"
    picture: ClassVar[str] = "predicted_and_true"

    def cell_fault(self, cell: str) -> tuple[str, str, str] | None:
        for name, text in json.loads(cell).items():
            if text and not np.isfinite(parse_number(text)):
                return f"have a number or nothing in {name!r}", repr(text), "correct the cell, or leave it empty"
        return None

    def names_of(self, cells: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
        return tuple(json.loads(next(iter(cells))))

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
        rows = [[parse_number(row[name]) for name in names] for row in map(json.loads, cells)]
        return np.array(rows, dtype=np.float32).reshape(len(cells), len(names))

    def label_faults(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        for name, column in zip(names, self.parse(labels.train, names).T, strict=True):
            yield from _constant(f"{labels.origin}, column {name!r}", column, "name other columns")

    def indicators(self, labels: np.ndarray) -> np.ndarray:
        """The tenths of each column's values."""
        return np.hstack([tenths(column) for column in columns(labels).T])

    def shape(self, rows: int, outputs: int) -> tuple[int, ...]:
        return rows, outputs

    def fault(self, outputs: np.ndarray, labels: np.ndarray | None, names: Sequence[str]) -> tuple[str, str] | None:
        shape = self.shape(len(outputs), max(len(names), 1))
        if outputs.shape != shape or not _finite(outputs):
            many = "a finite value" if len(shape) == 1 else f"{shape[1]} finite values"
            return f"have {many} for each of its {len(outputs)} rows", f"shape {outputs.shape}"
        if labels is not None and labels.shape != shape:
            return f"have labels of shape {shape}, as its values", f"labels of shape {labels.shape}"
        if labels is not None and not self._may_be_labels(labels):
            return "have labels that are finite numbers", "some that are not"
        return None

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        listed = ", ".join(names[:most]) + ", ..." * (len(names) > most)
        return f"{len(names)} numbers per row" + (f" ({listed})" if most else "")

    def guess(self, labels: np.ndarray, outputs: int) -> np.ndarray:
        return np.random.default_rng(0).permutation(np.where(np.isnan(labels), np.nanmean(labels, axis=0), labels))

    def decide(self, outputs: np.ndarray, decision: np.ndarray | None = None) -> np.ndarray:
        return outputs

    def decision_text(self, names: Sequence[str], decision: np.ndarray | None) -> str:
        return "the values" if names else "the value"

    def spell(self, decided: np.ndarray, names: Sequence[str]) -> list[Any]:
        return [dict(zip(names, map(shortest, row), strict=True)) for row in decided]

    def cells(self, decided: np.ndarray, names: Sequence[str]) -> list[str]:
        texts = [["" if each != each else str(each) for each in row] for row in decided]
        return by_columns(dict(zip(names, zip(*texts, strict=True), strict=True))) if texts else []

    def text(self, decided: Any, names: Sequence[str], *, exact: bool = False) -> str:
        return ", ".join(f"{name} {number_text(value, exact)}" for name, value in zip(names, decided, strict=True))

    def wrong(self, decided: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.asarray(((decided != labels) & ~np.isnan(labels)).reshape(len(labels), -1).any(axis=1))

    def loss(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        return float(np.nanmean(np.square(outputs - labels, dtype=np.float64)))

    def difference(self, first: np.ndarray, second: np.ndarray) -> float:
        """The mean over columns of 1 minus the correlation, which is 0 if only one of the two is constant."""
        if len(first) < 2:
            return 0.0
        pairs = zip(columns(first).T, columns(second).T, strict=True)
        return float(np.mean([correlation_distance(one, other) for one, other in pairs]))

    def disagreement(self, votes: np.ndarray) -> np.ndarray:
        """The standard deviation over members, and of several columns their mean in units of each column's spread."""
        apart = votes.astype(np.float64).std(axis=0)
        if apart.ndim == 1:
            return apart
        spread = votes.mean(axis=0).std(axis=0)
        return (apart / np.where(spread > 0, spread, 1)).mean(axis=1)

    def same(self, votes: np.ndarray) -> np.ndarray:
        return np.zeros(votes.shape[1], dtype=bool)

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """The first principal component of the standardized columns, missing ones at their mean."""
        spread = np.nanstd(labels, axis=0, dtype=np.float64)
        scaled = np.nan_to_num((labels - np.nanmean(labels, axis=0)) / np.where(spread > 0, spread, 1))
        return scaled @ np.linalg.eigh(scaled.T @ scaled)[1][:, -1]

    def _may_be_labels(self, labels: np.ndarray) -> bool:
        return labels.dtype.kind in "iuf" and not np.isinf(labels).any()


class Value(Values):
    """Labels ``(rows,)`` float32, none missing, and outputs ``(rows,)``."""

    name: ClassVar[str] = "value"

    def cell_fault(self, cell: str) -> tuple[str, str, str] | None:
        if np.isfinite(parse_number(cell)):
            return None
        rule = "have a number as its label, as the task's metric asks"
        return rule, repr(cell), "correct the label, or name a metric of classes"

    def plain(self, cell: str) -> str:
        return str(parse_number(cell))

    def names_of(self, cells: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
        return ()

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
        return np.array([parse_number(cell) for cell in cells], dtype=np.float32)

    def label_faults(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        values = self.parse(labels.train, names)
        return _constant(labels.origin, values, "add rows, or take the task out")

    def shape(self, rows: int, outputs: int) -> tuple[int, ...]:
        return (rows,)

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        return "one number per row"

    def spell(self, decided: np.ndarray, names: Sequence[str]) -> list[Any]:
        return list(map(shortest, decided))

    def cells(self, decided: np.ndarray, names: Sequence[str]) -> list[str]:
        return [str(value) for value in decided]

    def text(self, decided: Any, names: Sequence[str], *, exact: bool = False) -> str:
        return number_text(decided, exact)

    def strata(self, labels: np.ndarray) -> np.ndarray:
        return labels

    def _may_be_labels(self, labels: np.ndarray) -> bool:
        return _finite(labels)


def _constant(where: str, values: np.ndarray, remedy: str) -> Iterator[Fault]:
    known = values[~np.isnan(values)]
    if len(np.unique(known)) < 2:
        got = f"{known[0]:g} in every row" if len(known) else "no number"
        yield Fault(where, "have labels that differ, to learn from", got, remedy)


def tenths(values: np.ndarray) -> np.ndarray:
    """``(rows, tenths)`` float32: 1 in the tenth of each value, equal values in one; 0 where it is missing."""
    from scipy.stats import rankdata  # slow to import

    known = ~np.isnan(values)
    tenths = np.full(len(values), -1.0)
    tenths[known] = (rankdata(values[known]) - 0.5) * _QUANTILES // max(known.sum(), 1)
    return np.equal(np.unique(tenths[known]), tenths[:, None]).astype(np.float32)


def columns(values: np.ndarray) -> np.ndarray:
    """``(rows, k)``, of one number ``(rows, 1)``."""
    return values.reshape(len(values), -1)


def number_text(value: Any, exact: bool) -> str:
    """A number for a reader; ``exact`` shows the digits that float32 needs, which are those of the task's file."""
    return np.format_float_positional(np.float32(value), trim="-") if exact else f"{value:.6g}"


def correlation_distance(first: np.ndarray, second: np.ndarray) -> float:
    """1 minus the correlation, 0 if both are constant and 1 if one is."""
    if not (np.ptp(first) and np.ptp(second)):
        return float(np.ptp(first) != np.ptp(second))
    return 1 - float(np.corrcoef(first, second)[0, 1])


def _finite(numbers: np.ndarray) -> bool:
    return numbers.dtype.kind in "iuf" and bool(np.isfinite(numbers).all())
