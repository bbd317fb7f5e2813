"""Several labels: each row has any of k, and predictions are their independent probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tutti.errors import Fault
from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.kinds.classes import ordered_classes
from tutti.tasks.kinds.probabilities import divergence, few_numbers, probability_fault
from tutti.tasks.kinds.protocol import Kind, Tuner
from tutti.tasks.kinds.thresholds import tune_thresholds
from tutti.tasks.layouts.several import by_columns
from tutti.tasks.spelling import plain

MISSING = -1
_TRUTH = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}
_SHOWN = 5  # names in a message


class Labels(Kind):
    """Labels ``(rows, k)`` float32 of 0, 1 or NaN where one is missing, outputs ``(rows, k)`` probabilities.

    Decisions are ``(rows, k)`` int8; their parameters are the least probability of each label, 0.5 without.
    Each label of a row is a unit with two alternatives, no and yes.
    """

    name: ClassVar[str] = "labels"
    probabilistic: ClassVar[bool] = True
    tuned_alone: ClassVar[bool] = True
    picture: ClassVar[str] = "scores_by_label"

    def cell_fault(self, cell: str) -> tuple[str, str, str] | None:
        for name, text in _by_name(cell).items():
            if text and plain(text) not in _TRUTH:
                return f"have 0, 1 or nothing in {name!r}", repr(text), "correct the cell, or name other columns"
        return None

    def names_of(self, cells: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
        rows = list(map(json.loads, cells))
        if rows and isinstance(rows[0], dict):
            return tuple(rows[0])
        return ordered_classes((name for row in rows for name in row), order)

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
        labels = np.zeros((len(cells), len(names)), dtype=np.float32)
        index = {name: number for number, name in enumerate(names)}
        for row, cell in enumerate(cells):
            for name, text in _by_name(cell).items():
                labels[row, index[name]] = _TRUTH[plain(text)] if text else np.nan
        return labels

    def label_faults(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        if len(names) < 2:
            yield Fault(labels.origin, "have two labels or more", ", ".join(names) or "none", "use a task of classes")
        known = {*names}
        for where, cells in (*([labels.validation] if labels.validation else ()), *labels.extra.items()):
            if others := sorted({name for cell in cells for name in _by_name(cell)} - known):
                rule, remedy = f"have labels that occur in {labels.origin}", "correct them, or add training rows"
                yield Fault(where, rule, ", ".join(map(repr, others[:_SHOWN])), remedy)
        parsed = self.parse(labels.train, names)
        for name, column in zip(names, parsed.T, strict=True):
            if len(values := np.unique(column[~np.isnan(column)])) < 2:
                got = f"{values[0]:g} in every row" if len(values) else "no label"
                what, remedy = f"{labels.origin}, the label {name!r}", "leave the label out, or add rows"
                yield Fault(what, "have rows with 0 and rows with 1", got, remedy)

    def untrained(self, labels: np.ndarray, names: Sequence[str]) -> list[str]:
        return [name for name, column in zip(names, labels.T, strict=True) if not (column == 1).any()]

    def indicators(self, labels: np.ndarray) -> np.ndarray:
        return (labels == 1).astype(np.float32)

    def shape(self, rows: int, outputs: int) -> tuple[int, ...]:
        return rows, outputs

    def fault(self, outputs: np.ndarray, labels: np.ndarray | None, names: Sequence[str]) -> tuple[str, str] | None:
        shape = (len(outputs), len(names))
        if outputs.shape != shape:
            return f"have probabilities of shape {shape}", f"shape {outputs.shape}"
        if fault := probability_fault(outputs):
            return fault
        if labels is not None and labels.shape != shape:
            return f"have labels of shape {shape}", f"labels of shape {labels.shape}"
        if labels is not None and not (np.isnan(labels) | (labels == 0) | (labels == 1)).all():
            return "have labels that are 0 or 1", "some that are not"
        return None

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        listed = ", ".join(names[:most]) + ", ..." * (len(names) > most)
        return f"any of {len(names)} labels" + (f" ({listed})" if most else "")

    def guess(self, labels: np.ndarray, outputs: int) -> np.ndarray:
        return np.random.default_rng(0).random((len(labels), outputs), dtype=np.float32)

    def decide(self, outputs: np.ndarray, decision: np.ndarray | None = None) -> np.ndarray:
        return (outputs >= (0.5 if decision is None else decision)).astype(np.int8)

    def tuner(self, metric: str) -> Tuner | None:
        """Thresholds for F-beta; what other metrics count is right most often at 0.5."""
        average, _, beta = metric.rpartition("_f")
        if average not in ("macro", "weighted", "micro", "samples"):
            return None
        return partial(tune_thresholds, beta=float(beta), together=average in ("micro", "samples"))

    def decision_by_name(self, names: Sequence[str], decision: np.ndarray) -> Mapping[str, float]:
        return dict(zip(names, decision.tolist(), strict=True))

    def decision_text(self, names: Sequence[str], decision: np.ndarray | None) -> str:
        if decision is None:
            return "each label from 0.5 on"
        if (decision == decision[0]).all():
            return f"each label from {decision[0]:.3g} on"
        return f"thresholds: {few_numbers(self.decision_by_name(names, decision))}"

    def spell(self, decided: np.ndarray, names: Sequence[str]) -> list[Any]:
        return [dict(zip(names, row, strict=True)) for row in decided.astype(int).tolist()]

    def cells(self, decided: np.ndarray, names: Sequence[str]) -> list[str]:
        texts = [["" if each != each else str(int(each)) for each in row] for row in decided]
        return by_columns(dict(zip(names, zip(*texts, strict=True), strict=True))) if texts else []

    def held(self, decided: np.ndarray, outputs: int) -> np.ndarray:
        return decided == 1

    def text(self, decided: Any, names: Sequence[str], *, exact: bool = False) -> str:
        return ", ".join(name for name, chosen in zip(names, decided, strict=True) if chosen == 1) or "none"

    def wrong(self, decided: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.asarray(((decided != labels) & ~np.isnan(labels)).any(axis=1))

    def loss(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        right = np.where(labels == 1, outputs, 1 - outputs.astype(np.float64))
        return float(-np.log(right[~np.isnan(labels)].clip(min=1e-30)).mean())

    def difference(self, first: np.ndarray, second: np.ndarray) -> float:
        """The share of rows with other sets of labels."""
        return float((first != second).any(axis=1).mean()) if len(first) else 0.0

    def disagreement(self, votes: np.ndarray) -> np.ndarray:
        """The sum over labels of the divergence."""
        return divergence(self.distributions(votes)).reshape(votes.shape[1:]).sum(axis=1)

    def same(self, votes: np.ndarray) -> np.ndarray:
        decided = self.decide(votes)
        return (decided == decided[0]).all(axis=(0, 2))

    def distributions(self, outputs: np.ndarray) -> np.ndarray:
        return np.stack([1 - outputs, outputs], axis=-1).reshape(*outputs.shape[:-2], -1, 2)

    def from_distributions(self, distributions: np.ndarray, rows: int) -> np.ndarray:
        return distributions[..., 1].reshape(*distributions.shape[:-2], rows, -1)

    def truths(self, labels: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(labels), MISSING, labels).astype(np.int64).ravel()

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """The rarest label that a row has, k for none."""
        counts = np.nansum(labels, axis=0)
        rarity = np.where(labels == 1, counts, np.inf)
        return np.where(np.isfinite(rarity).any(axis=1), rarity.argmin(axis=1), labels.shape[1]).astype(np.int64)

    def counted_strata(self, labels: np.ndarray) -> np.ndarray | None:
        return self.strata(labels)

    def with_mistakes(
        self, decisions: np.ndarray, labels: np.ndarray, rows: np.ndarray, wrong: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """One label of each of the chosen rows is as it should not be."""
        label = rng.integers(0, labels.shape[1], len(rows))[wrong]
        mistaken = decisions.copy()
        mistaken[np.flatnonzero(wrong), label] = labels[rows[wrong], label] != 1
        return mistaken

    def right_and_wrong(self, labels: np.ndarray, row: int, common: Sequence[int]) -> tuple[Any, Any]:
        right = (labels[row] == 1).astype(np.int8)
        wrong = right.copy()
        label = int(self.strata(labels)[row]) % labels.shape[1]
        wrong[label] = 1 - wrong[label]
        return right, wrong


def _by_name(cell: str) -> dict[str, str]:
    """The texts of a row's labels by their names; those of a list are all 1."""
    labels = json.loads(cell)
    return labels if isinstance(labels, dict) else dict.fromkeys(labels, "1")
