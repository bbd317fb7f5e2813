"""Precision and recall by class, and the rows on which members disagree most, both out of fold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tutti.ensembling.disagreement import disagreement
from tutti.outputs.members import Elected

if TYPE_CHECKING:
    from tutti.tasks.task import Task


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class.

    Attributes:
        rows: the number of validation rows with this label.
        precision: none if the class is never predicted.
        recall: none if the class has no rows.
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
    """The scores of each class, in the task's order."""
    decided, labels = elected.held_out.decisions[0], elected.ballot.labels
    scores = []
    for index, name in enumerate(task.class_names):
        actual, predicted = labels == index, decided == index
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
    disagreements = disagreement(votes)
    if not task.regression:
        chosen = votes.argmax(axis=-1)
        disagreements[(chosen == chosen[0]).all(axis=0)] = 0
    by_text: dict[str, int] = {}  # the first row of each text
    for row in np.argsort(-disagreements, kind="stable"):
        if disagreements[row] == 0 or len(by_text) == most:
            break
        by_text.setdefault(texts[row], int(row))
    return tuple(
        Disputed(
            id=ids[row],
            text=texts[row],
            label=_label_text(task, elected.ballot.labels[row]),
            predicted=_predicted_text(task, elected.held_out.decisions[0, row]),
            votes=_votes_text(task, votes[:, row]),
        )
        for row in by_text.values()
    )


def _votes_text(task: Task, votes: np.ndarray) -> str:
    if task.regression:
        return f"{votes.min():.6g} to {votes.max():.6g}"
    counts = Counter(task.class_names[index] for index in votes.argmax(axis=1))
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _label_text(task: Task, label: np.number) -> str:
    if task.regression:  # the digits that float32 needs are those of the task's file
        return np.format_float_positional(np.float32(label), trim="-")
    return task.class_names[int(label)]


def _predicted_text(task: Task, decided: np.number) -> str:
    return f"{decided:.6g}" if task.regression else task.class_names[int(decided)]


def _share(part: np.ndarray, whole: np.ndarray) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None
