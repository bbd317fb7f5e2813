"""Precision and recall by class or label, and the rows on which members disagree most, both out of fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tutti.outputs.election.members import Elected
from tutti.tasks.kinds.probabilities import known

if TYPE_CHECKING:
    from tutti.tasks.task import Task


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class or label.

    Attributes:
        rows: the number of validation rows that have it.
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
    """

    id: str
    text: str
    label: str
    predicted: str
    votes: str


def class_scores(task: Task, elected: Elected) -> tuple[ClassScores, ...]:
    """The scores of each class or label, in the task's order; rows on which a label is missing do not count for it."""
    labels, kind = elected.ballot.labels, task.kind
    every_actual, every_predicted = (kind.held(each, task.outputs) for each in (labels, elected.held_out.decisions[0]))
    every_predicted = every_predicted & known(kind, labels)
    scores = []
    for name, actual, predicted in zip(task.names, every_actual.T, every_predicted.T, strict=True):
        correct = actual & predicted
        scores.append(ClassScores(name, int(actual.sum()), _share(correct, predicted), _share(correct, actual)))
    return tuple(scores)


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
        )
        for row in by_text.values()
    )


def _share(part: np.ndarray, whole: np.ndarray) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None
