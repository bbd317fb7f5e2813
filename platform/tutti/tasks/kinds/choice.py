"""Choices: each row has candidates of its own, one of which is right, such as the answers to a question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, ClassVar

import numpy as np

from tutti.errors import Fault
from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.kinds.classes import Classes
from tutti.tasks.kinds.protocol import Tuner


class Choice(Classes):
    """Labels ``(rows,)`` int64 places of the right candidates, outputs ``(rows, most candidates)`` probabilities.

    They sum to 1, and are exactly 0 for candidates that a row does not have. A candidate's place says nothing of it, so
    decisions are the likeliest candidates, without any parameters. Outputs are called A, B, C and so on.
    """

    name: ClassVar[str] = "choice"
    exchangeable: ClassVar[bool] = True
    picture: ClassVar[str] = "right_by_place"

    def names_of(self, cells: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
        """The letters up to the last one that occurs, at least two."""
        return letters(max((place_of(cell) + 1 for cell in cells), default=2))

    def label_faults(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        yield from ()  # the layout has compared each label with its row's candidates

    def untrained(self, labels: np.ndarray, names: Sequence[str]) -> list[str]:
        return []

    def indicators(self, labels: np.ndarray) -> np.ndarray:
        return np.ones((len(labels), 1), dtype=np.float32)

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        return f"one of {'two' if len(names) == 2 else f'up to {len(names)}'} candidates"

    def tuner(self, metric: str) -> Tuner | None:
        return None

    def decision_by_name(self, names: Sequence[str], decision: np.ndarray) -> Mapping[str, float]:
        return {}

    def decision_text(self, names: Sequence[str], decision: np.ndarray | None) -> str:
        return "the likeliest candidate"

    def strata(self, labels: np.ndarray) -> np.ndarray:
        return np.zeros(len(labels), dtype=np.int64)

    def counted_strata(self, labels: np.ndarray) -> np.ndarray | None:
        return self.strata(labels)

    def right_and_wrong(self, labels: np.ndarray, row: int, common: Sequence[int]) -> tuple[Any, Any]:
        return labels[row], 0 if labels[row] else 1


def letters(count: int) -> tuple[str, ...]:
    """The names of so many candidates: A to Z, then AA, AB and so on.

    >>> letters(4)
    ('A', 'B', 'C', 'D')
    """
    return tuple(letter(place) for place in range(count))


def letter(place: int) -> str:
    """The name of the candidate at a place, counted from 0."""
    name = ascii_uppercase[place % 26]
    return name if place < 26 else letter(place // 26 - 1) + name


def place_of(name: str) -> int:
    """The inverse of ``letter``; -1 for what is no such name."""
    place = -1
    for sign in name:
        if sign not in ascii_uppercase:
            return -1
        place = (place + 1) * 26 + ascii_uppercase.index(sign)
    return place


def possible(outputs: np.ndarray, votes: np.ndarray) -> np.ndarray:
    """``(rows, outputs)`` probabilities without the candidates to which no vote gives any: those that rows lack.

    A mean of logarithms, a temperature, and ranks give them a little.

    Args:
        votes: ``(members, rows, outputs)``.
    """
    kept = np.where((votes > 0).any(axis=0), outputs, 0)
    return kept / np.maximum(kept.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
