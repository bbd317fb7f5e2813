"""What an ensemble says class by class, and where its members disagree, on rows that had no part in choosing it."""

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
    """One class.

    Attributes:
        rows: validation rows that have it.
        precision: the share of the rows it is said of that have it; none where it is said of none.
        recall: the share of its rows that it is said of; none where it has no rows.
    """

    label: str
    rows: int
    precision: float | None
    recall: float | None


@dataclass(frozen=True)
class Disputed:
    """A validation row that the members disagree on.

    Attributes:
        label: as the task's file has it.
        said: by the ensemble, chosen on other rows.
        votes: what each member says and how many say it, most first; of values the lowest and the highest.
        disagreement: see ``tutti.ensembling.disagreement``.
    """

    id: str
    text: str
    label: str
    said: str
    votes: str
    disagreement: float


def class_scores(task: Task, elected: Elected) -> tuple[ClassScores, ...]:
    """The classes of a task, in its order."""
    decided, labels = elected.held.decisions[0], elected.ballot.labels
    found = []
    for index, name in enumerate(task.class_names):
        has, told = labels == index, decided == index
        found.append(ClassScores(name, int(has.sum()), _share(has & told, told), _share(has & told, has)))
    return tuple(found)


def disputed(
    task: Task, elected: Elected, *, ids: Sequence[str], texts: Sequence[str], most: int
) -> tuple[Disputed, ...]:
    """The validation rows that the members disagree on most, such first; none where one votes alone.

    Args:
        ids: of the validation rows.
        texts: of the validation rows, pairs as one.
        most: how many at most.
    """
    each = zip(elected.ensemble.voters, elected.ensemble.combiner.weights, strict=True)
    votes = elected.ballot.votes[[voter for voter, weight in each if weight != 0]]  # of `best` one alone has a vote
    if len(votes) < 2:
        return ()
    apart = disagreement(votes)
    rows = [int(row) for row in np.argsort(-apart, kind="stable")[:most] if apart[row] > 0]
    return tuple(
        Disputed(
            id=ids[row],
            text=texts[row],
            label=_named(task, elected.ballot.labels[row]),
            said=_named(task, elected.held.decisions[0, row]),
            votes=_votes(task, votes[:, row]),
            disagreement=float(apart[row]),
        )
        for row in rows
    )


def _votes(task: Task, votes: np.ndarray) -> str:
    if task.regression:
        return f"{votes.min():.3g} to {votes.max():.3g}"
    counts = Counter(task.class_names[index] for index in votes.argmax(axis=1))
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _named(task: Task, decided: float) -> str:
    return f"{decided:.3g}" if task.regression else task.class_names[int(decided)]


def _share(part: np.ndarray, whole: np.ndarray) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None
