"""The kind of a task: what its labels and predictions are. Nobody outside a kind asks whether they are classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from tutti.errors import Fault
from tutti.tasks.kinds.cells import LabelCells

Tuner = Callable[[np.ndarray, np.ndarray], np.ndarray | None]
"""Predictions and labels of the same rows to parameters of ``Kind.decide``, or none where those without are best."""


class Kind(Protocol):
    """One sort of labels and predictions, as arrays. An instance has no state; what most kinds share stands here.

    Below, ``labels`` are ``(rows,)`` or ``(rows, k)``, and ``outputs``, a member's predictions, have ``shape``. Methods
    that say so take further axes in front, such as that of members.

    Attributes:
        name: how study files, banks and cards name it.
        probabilistic: whether outputs are probabilities. They then have a confidence, can be calibrated and be learnt
            as soft labels, and ``distributions``, ``from_distributions`` and ``truths`` apply.
        exclusive: whether exactly one of a row's outputs comes true, so that they compete.
        exchangeable: whether outputs are a row's own, so that the same place means nothing from row to row, and a row
            may have fewer than others: nothing is then learnt, tuned or counted by output.
        generative: whether outputs are texts that a model writes token by token. They take no mean.
        sequential: whether a row has several units, such as words, each with outputs of its own.
        comparative: whether labels compare the texts of a row, each of which has a value of its own. Values of members
            then have no common unit, and ``distributions`` and ``truths`` say which text is better.
        spans: how many spans the tags of a row's units mark: ``many``, ``overlapping`` ones of different types, at most
            ``one``, or ``none``, where tags are classes of units; empty where units have no tags.
        tuned_alone: whether a model alone is scored at tuned decisions, for metrics that have a ``tuner``, since those
            without parameters say little of it.
        needs_order: whether the order of the outputs counts, so that it has to be known.
        picture: name of the picture that shows predictions beside labels.
    """

    name: ClassVar[str]
    probabilistic: ClassVar[bool] = False
    exclusive: ClassVar[bool] = False
    exchangeable: ClassVar[bool] = False
    generative: ClassVar[bool] = False
    sequential: ClassVar[bool] = False
    comparative: ClassVar[bool] = False
    spans: ClassVar[str] = ""
    tuned_alone: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False
    picture: ClassVar[str]

    def cell_fault(self, cell: str) -> tuple[str, str, str] | None:
        """The rule that a label in a file breaks, written to follow "must", what it is instead, and the remedy."""
        return None

    def plain(self, cell: str) -> str:
        """The same for all spellings of one label that are read alike."""
        return cell

    def names_of(self, cells: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
        """What the outputs are, by the labels of training rows.

        Args:
            order: another order of these, which comes first.
        """
        ...

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
        """Labels of rows as they were read, whose ``cell_fault`` is none, and which have no other names."""
        ...

    def label_faults(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        """What stops labels from being learnt and judged."""
        ...

    def untrained(self, labels: np.ndarray, names: Sequence[str]) -> list[str]:
        """The names of outputs that labels of training rows do not teach."""
        return []

    def indicators(self, labels: np.ndarray) -> np.ndarray:
        """``(rows, strata)`` float32 of 0 and 1: what is to be spread evenly where rows are dealt."""
        ...

    def shape(self, rows: int, outputs: int) -> tuple[int, ...]:
        """The shape of the outputs for so many rows of a task with so many outputs."""
        ...

    def fault(self, outputs: np.ndarray, labels: np.ndarray | None, names: Sequence[str]) -> tuple[str, str] | None:
        """The first rule that outputs or labels break, written to follow "must", and what they are instead."""
        ...

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        """In words, what a task with these outputs predicts, such as ``3 classes``; up to ``most`` names are listed."""
        ...

    def guess(self, labels: np.ndarray, outputs: int) -> np.ndarray:
        """Random outputs for rows with these labels, to try what takes outputs."""
        ...

    def decide(self, outputs: np.ndarray, decision: np.ndarray | None = None) -> np.ndarray:
        """Decisions of the shape of labels, with any further axes in front.

        Args:
            decision: the parameters that a ``Tuner`` found, or none.
        """
        ...

    def tuner(self, metric: str) -> Tuner | None:
        """What tunes decisions for a metric; none where decisions have no parameters, or none that it gains from.

        Args:
            metric: a name of ``METRICS``, or empty for a metric of the user's own.
        """
        return None

    def decision_by_name(self, names: Sequence[str], decision: np.ndarray) -> Mapping[str, float]:
        """The parameters of decisions, named for a card."""
        return {}

    def decision_text(self, names: Sequence[str], decision: np.ndarray | None) -> str:
        """How decisions are made, in a few words, with their parameters."""
        ...

    def spell(self, decided: np.ndarray, names: Sequence[str]) -> list[Any]:
        """Decisions as a submission has them, one for each row: the label's text or number, or such by their names."""
        ...

    def cells(self, decided: np.ndarray, names: Sequence[str]) -> list[str]:
        """Decisions as labels of a training file, one text for each row; the inverse of reading them."""
        ...

    def held(self, decided: np.ndarray, outputs: int) -> np.ndarray:
        """``(rows, outputs)`` bool: which classes or labels each row has, by its labels or decisions."""
        raise TypeError(f"{self.name} are no classes or labels")

    def text(self, decided: Any, names: Sequence[str], *, exact: bool = False) -> str:
        """One row's decision or label for a reader; ``exact`` shows every digit of a number."""
        ...

    def wrong(self, decided: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """``(rows,)`` bool: whether decisions differ from what is known of the labels; of numbers nearly always."""
        ...

    def loss(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        """The mean loss that goes with the outputs: negative log-likelihood, or squared error."""
        ...

    def difference(self, first: np.ndarray, second: np.ndarray) -> float:
        """How much two members' decisions on the same rows differ; 0 for equal ones, at most 1, or 2 for values."""
        ...

    def disagreement(self, votes: np.ndarray) -> np.ndarray:
        """How much members disagree on each row, ``(members, rows, ...)`` outputs to ``(rows,)`` float64; 0 for none.

        Members that decide alike may disagree; see ``same``.
        """
        ...

    def same(self, votes: np.ndarray) -> np.ndarray:
        """``(rows,)`` bool: whether all members decide alike, ``(members, rows, ...)``; never for values."""
        ...

    def distributions(self, outputs: np.ndarray) -> np.ndarray:
        """``(..., units, alternatives)`` probabilities that sum to 1, with any further axes in front."""
        raise TypeError(f"{self.name} are no probabilities")

    def from_distributions(self, distributions: np.ndarray, rows: int) -> np.ndarray:
        """The inverse of ``distributions`` for so many rows."""
        raise TypeError(f"{self.name} are no probabilities")

    def truths(self, labels: np.ndarray) -> np.ndarray:
        """``(units,)`` int64: the right alternative of each unit of ``distributions``; -1 where it is unknown."""
        raise TypeError(f"{self.name} are no probabilities")

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """``(rows,)``: rows with near values are alike. Sorted by it, rows can be dealt evenly to folds."""
        ...

    def counted_strata(self, labels: np.ndarray) -> np.ndarray | None:
        """``(rows,)`` int64 of strata that no resample may lack; none where rows have none such."""
        return None

    def with_mistakes(
        self, decisions: np.ndarray, labels: np.ndarray, rows: np.ndarray, wrong: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Decisions for some rows, with random mistakes where ``wrong``; values have none.

        Args:
            decisions: of the drawn rows.
            labels: of all rows.
            rows: ``(drawn,)`` indices of the drawn rows.
            wrong: ``(drawn,)`` bool.
        """
        return decisions

    def right_and_wrong(self, labels: np.ndarray, row: int, common: Sequence[int]) -> tuple[Any, Any]:
        """The right decision for a row, and the likeliest mistake; asked only where ``counted_strata`` are not none.

        Args:
            common: rows of the two commonest strata, the commonest first.
        """
        raise TypeError(f"rows of {self.name} have no strata that are counted")
