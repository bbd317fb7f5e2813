"""Precision and recall by class, label or type of entity, and the rows on which members disagree most, out of fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Disputed:
    """A validation row that the members disagree on.

    Attributes:
        label: as in the task's file.
        predicted: the prediction of an ensemble that was chosen on other rows.
        votes: the number of members by predicted class, highest first; for a regression, the range of values.
        parts: of rows with tags, the text as both mark it; else empty.
    """

    id: str
    text: str
    label: str
    predicted: str
    votes: str
    parts: tuple[Part, ...] = ()


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


def class_scores(task: Task, elected: Elected) -> tuple[ClassScores, ...]:
    """The scores of each class or label, in the task's order, or of each type of entity.

    Rows on which a label is missing do not count for it.
    """
    labels, kind = elected.ballot.labels, task.kind
    if kind.spans == "none":
        known_tags = labels >= 0
        found, true = elected.held_out.decisions[0][known_tags].astype(np.int64), labels[known_tags]
        counted = [np.bincount(each, minlength=task.outputs) for each in (true[true == found], found, true)]
        return tuple(_of_counts(name, *each) for name, *each in zip(task.names, *counted, strict=True))
    if kind.sequential:
        counts = entity_counts(labels, elected.held_out.decisions[0], outputs=task.outputs).sum(axis=0).T
        return tuple(_of_counts(name, *each) for name, each in zip(types_of(task.names), counts, strict=True))
    every_actual, every_predicted = (kind.held(each, task.outputs) for each in (labels, elected.held_out.decisions[0]))
    every_predicted = every_predicted & known(kind, labels)
    scores = []
    for name, actual, predicted in zip(task.names, every_actual.T, every_predicted.T, strict=True):
        correct = actual & predicted
        scores.append(ClassScores(name, int(actual.sum()), _share(correct, predicted), _share(correct, actual)))
    return tuple(scores)


def _of_counts(name: str, right: int, found: int, true: int) -> ClassScores:
    return ClassScores(name, int(true), right / found if found else None, right / true if true else None)


def disputed(
    task: Task, elected: Elected, *, ids: Sequence[str], texts: Sequence[str], most: int
) -> tuple[Disputed, ...]:
    """The validation rows that the members disagree on most, most first, each text once; none if a single member votes.

    Members that all choose the same class agree, however sure each of them is.

    Args:
        ids: the ids of the validation rows.
        texts: the texts of the validation rows, pairs joined.
        most: the maximum number of rows.
    """
    weighted = zip(elected.ensemble.voters, elected.ensemble.combiner.weights, strict=True)
    votes = elected.ballot.votes[[voter for voter, weight in weighted if weight != 0]]
    if len(votes) < 2:
        return ()
    disagreements = np.where(task.kind.same(votes), 0, task.kind.disagreement(votes))
    by_text: dict[str, int] = {}  # the first row of each text
    for row in np.argsort(-disagreements, kind="stable"):
        if disagreements[row] == 0 or len(by_text) == most:
            break
        by_text.setdefault(texts[row], int(row))
    return tuple(
        Disputed(
            id=ids[row],
            text=texts[row],
            label=task.kind.text(elected.ballot.labels[row], task.names, exact=True),
            predicted=task.kind.text(elected.held_out.decisions[0, row], task.names),
            votes=task.kind.votes_text(votes[:, row], task.names),
            parts=_parts(task, texts[row], elected.ballot.labels[row], elected.held_out.decisions[0, row])
            if task.kind.sequential
            else (),
        )
        for row in by_text.values()
    )


def _parts(task: Task, text: str, labels: np.ndarray, decided: np.ndarray) -> tuple[Part, ...]:
    marks = task.kind.spans != "none"
    types = ("", *types_of(task.names)) if marks else task.names
    units = spans_of(text, task.unit)[: int((labels != ABSENT).sum())]  # a text beside it follows
    by_unit = [
        tuple(types[(max(int(one), 0) + 1) // 2 if marks else max(int(one), 0)] for one in (tag, other))
        for tag, other in zip(labels[: len(units)], decided[: len(units)], strict=True)
    ]
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


def _share(part: np.ndarray, whole: np.ndarray) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None
