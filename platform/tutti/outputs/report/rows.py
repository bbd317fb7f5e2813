"""Scores by class, label or type of entity, and the rows that the vote has wrong or members dispute, out of fold."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tutti.outputs.election.members import Elected
from tutti.tasks.kinds.entities import ABSENT, types_of
from tutti.tasks.kinds.probabilities import known
from tutti.tasks.metrics.tags import entity_counts
from tutti.tasks.units import spans_of

if TYPE_CHECKING:
    from tutti.tasks.task import Task


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class, label or type of entity.

    Attributes:
        rows: the number of validation rows that have it, or of entities.
        precision: none if it is never predicted.
        recall: none if it has no rows.
    """

    label: str
    rows: int
    precision: float | None
    recall: float | None

    @property
    def f1(self) -> float | None:
        """None where both others are; 0 where nothing is right."""
        if self.precision is None and self.recall is None:
            return None
        both = (self.precision or 0.0) + (self.recall or 0.0)
        return 2 * (self.precision or 0.0) * (self.recall or 0.0) / both if both else 0.0


@dataclass(frozen=True)
class Opinion:
    """What the vote and its members say of a validation row.

    Attributes:
        label: as in the task's file.
        predicted: the prediction of an ensemble that was chosen on other rows.
        wrong: whether that is not the label.
        loss: of the vote; the higher, the surer it is of something else.
        given: the probability that the vote gives the label; none for kinds whose rows have no single one.
        disagreement: of the members; 0 where all decide alike.
        votes: what each member says, as ``happy: t0001, t0004; sad: t0002``.
        by_member: the same by member's key.
        cell: the places of label and prediction among the classes; none for kinds without classes.
        parts: of rows with tags, the text as both mark it; else empty.
    """

    id: str
    text: str
    label: str
    predicted: str
    wrong: bool
    loss: float
    given: float | None
    disagreement: float
    by_member: dict[str, str]
    cell: tuple[int, int] | None = None
    parts: tuple[Part, ...] = ()

    @property
    def votes(self) -> str:
        voters: dict[str, list[str]] = {}
        for key, said in self.by_member.items():
            voters.setdefault(said, []).append(key)
        if len(voters) == 1 and len(self.by_member) > 1:
            return f"all: {next(iter(voters))}"
        most_first = sorted(voters.items(), key=lambda item: -len(item[1]))
        return "; ".join(f"{said}: {', '.join(keys)}" for said, keys in most_first)


@dataclass(frozen=True)
class Part:
    """Neighbouring characters of a text that are alike in the label and in the prediction.

    Attributes:
        label, predicted: the type of entity that they are in; empty for none.
    """

    text: str
    label: str
    predicted: str

    @property
    def verdict(self) -> str:
        """``right``, ``missed`` or ``wrong``; empty outside of entities."""
        if self.label == self.predicted:
            return "right" if self.label else ""
        return "wrong" if self.predicted else "missed"


def class_scores(task: Task, labels: np.ndarray, decided: np.ndarray) -> tuple[ClassScores, ...]:
    """The scores of each class or label, in the task's order, or of each type of entity.

    Rows on which a label is missing do not count for it.
    """
    kind = task.kind
    if kind.spans == "none":
        known_tags = labels >= 0
        found, true = decided[known_tags].astype(np.int64), labels[known_tags]
        counted = [np.bincount(each, minlength=task.outputs) for each in (true[true == found], found, true)]
        return tuple(_of_counts(name, *each) for name, *each in zip(task.names, *counted, strict=True))
    if kind.sequential:
        counts = entity_counts(labels, decided, outputs=task.outputs).sum(axis=0).T
        return tuple(_of_counts(name, *each) for name, each in zip(types_of(task.names), counts, strict=True))
    every_actual, every_predicted = (kind.held(each, task.outputs) for each in (labels, decided))
    every_predicted = every_predicted & known(kind, labels)
    scores = []
    for name, actual, predicted in zip(task.names, every_actual.T, every_predicted.T, strict=True):
        correct = actual & predicted
        scores.append(ClassScores(name, int(actual.sum()), _share(correct, predicted), _share(correct, actual)))
    return tuple(scores)


def _of_counts(name: str, right: int, found: int, true: int) -> ClassScores:
    return ClassScores(name, int(true), right / found if found else None, right / true if true else None)


class Opinions:
    """What the vote and its members say of a task's validation rows.

    Args:
        ids: the ids of the validation rows.
        texts: the texts of the validation rows, pairs joined.
    """

    def __init__(self, task: Task, elected: Elected, *, ids: Sequence[str], texts: Sequence[str]) -> None:
        self._task, self._elected, self._ids, self._texts = task, elected, ids, texts
        self._labels, held_out = elected.ballot.labels, elected.held_out
        self._decided = held_out.decisions[0]
        self._outputs = self._decided if held_out.calibrated is None else held_out.calibrated
        weighted = zip(elected.ensemble.voters.tolist(), elected.ensemble.combiner.weights, strict=True)
        self._voters = [voter for voter, weight in weighted if weight != 0]

    @cached_property
    def wrong(self) -> list[int]:
        """The rows that the vote has wrong, the surest first: labels to be checked."""
        rows = np.flatnonzero(self._task.kind.wrong(self._decided, self._labels))
        return rows[np.argsort(-self._losses[rows], kind="stable")].tolist()

    @cached_property
    def disputed(self) -> list[int]:
        """The rows that members dispute most, each text once; none if a single member votes.

        Members that all choose the same class agree, however sure each of them is.
        """
        by_text: dict[str, int] = {}
        for row in np.argsort(-self._disagreements, kind="stable").tolist():
            if self._disagreements[row] > 0:
                by_text.setdefault(self._texts[row], row)
        return [*by_text.values()]

    def of(self, row: int) -> Opinion:
        """What is said of one row."""
        task, kind = self._task, self._task.kind
        label, decided = self._labels[row], self._decided[row]
        single = kind.exclusive and kind.probabilistic and not kind.sequential
        members = {
            self._elected.keys[voter]: kind.text(self._elected.ballot.decisions[voter, row], task.names)
            for voter in self._voters
        }
        return Opinion(
            id=self._ids[row],
            text=self._texts[row],
            label=kind.text(label, task.names, exact=True),
            predicted=kind.text(decided, task.names),
            wrong=bool(kind.wrong(self._decided[[row]], self._labels[[row]])[0]),
            loss=float(self._losses[row]),
            given=float(np.exp(-self._losses[row])) if single else None,
            disagreement=float(self._disagreements[row]),
            by_member=members,
            cell=(int(label), int(decided)) if single and not kind.exchangeable else None,
            parts=_parts(task, self._texts[row], label, decided) if kind.sequential else (),
        )

    @cached_property
    def _losses(self) -> np.ndarray:
        """``(rows,)`` float64; 0 where nothing is known."""
        loss, outputs, labels = self._task.kind.loss, self._outputs, self._labels
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mean of no known label
            return np.nan_to_num([loss(outputs[[row]], labels[[row]]) for row in range(len(labels))])

    @cached_property
    def _disagreements(self) -> np.ndarray:
        votes, kind = self._elected.ballot.votes[self._voters], self._task.kind
        if len(votes) < 2:
            return np.zeros(len(self._labels))
        return np.where(kind.same(votes), 0, kind.disagreement(votes))


def _parts(task: Task, text: str, labels: np.ndarray, decided: np.ndarray) -> tuple[Part, ...]:
    marked = [_marks(task, each) for each in (labels, decided)]
    units = spans_of(text, task.unit)[: len(marked[0])]  # a text beside it follows
    by_unit = list(zip(*(each[: len(units)] for each in marked), strict=True))
    parts: list[Part] = []
    place = 0
    for index, ((start, end), own) in enumerate(zip(units.tolist(), by_unit, strict=True)):
        before = by_unit[index - 1] if index else None
        between = text[place:start]
        if before == own:
            last = parts.pop()
            parts.append(Part(last.text + between + text[start:end], *own))
        else:
            parts += [Part(between, "", "")] * bool(between) + [Part(text[start:end], *own)]
        place = end
    return (*parts, *[Part(text[place:], "", "")] * bool(text[place:]))


def _marks(task: Task, tags: np.ndarray) -> list[str]:
    """The types, or the tag, of each word of a row; empty outside of entities."""
    present = np.maximum(tags[tags != ABSENT], 0)
    if task.kind.spans == "none":
        return [task.names[tag] for tag in present]
    types = ("", *types_of(task.names))
    by_word = present.reshape(len(types) - 1 if task.kind.spans == "overlapping" else 1, -1).T
    return [" + ".join(types[(tag + 1) // 2] for tag in own if tag) for own in by_word]


def _share(part: np.ndarray, whole: np.ndarray) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None
