"""An ensemble's card: what voted, with what weight, how good it was, and which files came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tutti.errors import counted
from tutti.outputs.members import Member

CAVEAT = (
    "The ensemble's validation scores are measured on the rows that ranked its members, so they flatter it a little."
)
PICTURE = "ensemble.png"


@dataclass(frozen=True)
class TaskCard:
    """One task's part of the ensemble.

    Attributes:
        metric: the metric of every score here.
        members: best first.
        score: the ensemble's validation score.
        best_member: the highest validation score of a single member.
        rows: rows in each part, the validation rows among them.
    """

    task: str
    metric: str
    members: tuple[Member, ...]
    score: float
    best_member: float
    rows: Mapping[str, int]


@dataclass(frozen=True)
class Single:
    """One trial alone: its objective, and its validation score by task."""

    key: str
    number: int
    objective: float
    task_scores: Mapping[str, float]


@dataclass(frozen=True)
class Card:
    """The whole ensemble.

    Attributes:
        created: UTC, ISO 8601.
        rule: how the members were chosen and weighed.
        threshold: the recipe's lowest confidence of a pseudo-label, inclusive.
        objective: mean over tasks of the ensemble's validation scores.
        singles: every trial of the bank, best objective first, whether it votes or not.
        files: SHA-256 of every file beside the card, by path.
    """

    study: str
    recipe: str
    created: str
    rule: str
    threshold: float
    objective: float
    tasks: tuple[TaskCard, ...]
    singles: tuple[Single, ...]
    notes: tuple[str, ...]
    files: Mapping[str, str]
    caveat: str = CAVEAT

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, indent=2) + "\n"

    def to_markdown(self) -> str:
        """The card as a page for people."""
        return "\n".join(
            [
                f"# Ensemble `{self.recipe}` of study `{self.study}`",
                "",
                f"Made {self.created}. Members: {self.rule}, out of {counted(len(self.singles), 'trial')}.",
                "",
                f"Of unlabelled rows the recipe takes those with a confidence of at least {self.threshold:g}.",
                "",
                *(line for note in (*self.notes, self.caveat) for line in (f"> {note}", "")),
                "## Every single trial and the ensemble",
                "",
                f"![Validation score of every single trial and of the ensemble]({PICTURE})",
                "",
                *self._comparison(),
                "",
                "Validation scores; ● marks a trial that votes for the task.",
                "",
                "## Members",
                "",
                *self._members(),
                "",
                "## Files",
                "",
                *table(("file", "SHA-256"), [(name, f"`{digest}`") for name, digest in self.files.items()]),
                "",
            ]
        )

    def _comparison(self) -> list[str]:
        head = ("trial", "objective", *(f"{task.task} ({task.metric})" for task in self.tasks))
        rows = [
            (one.key, f"{one.objective:.4f}", *(self._cell(one, task) for task in self.tasks)) for one in self.singles
        ]
        best = (max(one.objective for one in self.singles), *(task.best_member for task in self.tasks))
        ensemble = (self.objective, *(task.score for task in self.tasks))
        rows.append(("**ensemble**", *(f"**{score:.4f}**" for score in ensemble)))
        gains = (f"{score - single:+.4f}" for score, single in zip(ensemble, best, strict=True))
        rows.append(("over the best trial (objective) or member (tasks)", *gains))
        return table(head, rows)

    @staticmethod
    def _cell(single: Single, task: TaskCard) -> str:
        votes = any(member.key == single.key for member in task.members)
        return f"{single.task_scores[task.task]:.4f}{' ●' if votes else ''}"

    def _members(self) -> list[str]:
        return members_table([(task.task, task.members) for task in self.tasks])


def members_table(members: Sequence[tuple[str, Sequence[Member]]]) -> list[str]:
    """Markdown: one row for each task and member."""
    rows = [
        (task, each.key, f"{each.weight:.4f}", f"{each.score:.4f}", f"{each.objective:.4f}")
        for task, group in members
        for each in group
    ]
    return table(("task", "trial", "weight", "validation score", "objective"), rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table. Cells may hold anything; a bar or a line feed in one is made harmless."""
    lines = (" | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in row) for row in (head, *rows))
    first, *rest = (f"| {line} |" for line in lines)
    return [first, "|" + " --- |" * len(head), *rest]
