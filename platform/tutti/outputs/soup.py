"""The card of a soup: what went into it, and what it is worth beside the vote of the same trials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tutti.errors import counted
from tutti.outputs.card import table


@dataclass(frozen=True)
class Tried:
    """One trial that was tried, in the order of trying.

    Attributes:
        alone: its validation score when it was trained.
        score: of the soup with it.
        kept: whether it is in the soup.
    """

    key: str
    alone: float
    score: float
    kept: bool


@dataclass(frozen=True)
class SoupCard:
    """What came out.

    Attributes:
        created: UTC, ISO 8601.
        tried: trials, the best first.
        passed_over: trials of another shape or max_length than the best one.
        task_scores: per task, the soup's metric on the validation rows.
        vote_scores: per task, that of the recipe's vote on the same rows.
        within: how much less than the vote's mean the soup's may be.
        files: SHA-256 of every file beside the card, by path.
    """

    study: str
    recipe: str
    created: str
    tried: tuple[Tried, ...]
    passed_over: tuple[str, ...]
    task_scores: Mapping[str, float]
    vote_scores: Mapping[str, float]
    within: float
    files: Mapping[str, str]

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(each.key for each in self.tried if each.kept)

    @property
    def score(self) -> float:
        """The mean over tasks."""
        return sum(self.task_scores.values()) / len(self.task_scores)

    @property
    def vote(self) -> float:
        """The mean over tasks of the vote's scores."""
        return sum(self.vote_scores.values()) / len(self.vote_scores)

    @property
    def kept(self) -> bool:
        return self.score >= self.vote - self.within

    @property
    def verdict(self) -> str:
        """What came out, in one sentence."""
        what = f"The soup of {counted(len(self.members), 'trial')} scores {self.score:.4f}, the vote {self.vote:.4f}"
        if self.kept:
            return f"{what}: it is kept."
        return f"{what}: it is not kept, for it is more than {self.within:g} below."

    def to_json(self) -> str:
        said = {"members": self.members, "score": self.score, "vote": self.vote, "kept": self.kept}
        return json.dumps({**asdict(self), **said}, ensure_ascii=False, indent=2) + "\n"

    def to_markdown(self) -> str:
        """The card as a page for people."""
        rows = [
            (each.key, f"{each.alone:.4f}", f"{each.score:.4f}", "yes" if each.kept else "no") for each in self.tried
        ]
        tasks = [(name, f"{score:.4f}", f"{self.vote_scores[name]:.4f}") for name, score in self.task_scores.items()]
        others = (
            f"Passed over, of another shape than the best: {', '.join(self.passed_over)}." if self.passed_over else ""
        )
        return "\n".join(
            [
                f"# Soup `{self.recipe}` of study `{self.study}`",
                "",
                f"Made {self.created}. {self.verdict} Both chose their members on the rows that they are scored on.",
                "",
                *([others, ""] if others else []),
                *table(("trial", "alone", "the soup with it", "in the soup"), rows),
                "",
                *table(("task", "soup", "vote"), tasks),
                "",
                *table(("file", "SHA-256"), [(name, f"`{digest}`") for name, digest in self.files.items()]),
                "",
            ]
        )
