"""The card of a soup: what went into it, and what it is worth beside the vote of the same trials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from tutti.ensembling.nested import LEAST_JUDGED, Estimate, Fold, judge, splits
from tutti.errors import counted
from tutti.outputs.card import files_section, table

if TYPE_CHECKING:
    import numpy as np

    from tutti.outputs.members import Election


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
class Versus:
    """What a soup and a vote score on rows that chose nothing in them, and by how much the soup is better."""

    soup: Estimate
    vote: Estimate
    gain: Estimate


def refolded(election: Election, *, by: Literal["objective", "task"]) -> list[Fold] | None:
    """For each fifth of the rows, who votes in any task where the others choose; none where rows are too few to judge.

    Args:
        by: what ranks those who could vote, as in ``Rule``.
    """
    elected = election.tasks
    if min(len(each.ballot.labels) for each in elected.values()) < LEAST_JUDGED:
        return None
    parted = {name: list(splits(each.ballot.labels, repeats=1, seed=0)) for name, each in elected.items()}
    folds = []
    for fifth in zip(*parted.values(), strict=True):
        rows = {name: train for name, (_, train, _) in zip(parted, fifth, strict=True)}
        moved = {name: each.ballot.scores_on(rows[name]) - each.ballot.scores for name, each in elected.items()}
        voters: dict[str, None] = {}
        for name, each in elected.items():
            # One soup answers in all tasks: what ranks by their mean must know the held rows of none.
            told = sum(moved.values()) if by == "objective" else moved[name]
            standing = each.procedure.standing + each.procedure.share * told
            chosen = each.procedure.selection.choose(standing, each.ballot.decisions[:, rows[name]])
            voters |= dict.fromkeys(each.keys[index] for index in chosen)
        held = {name: last for name, (_, _, last) in zip(parted, fifth, strict=True)}
        folds.append(Fold(tuple(voters), rows, held))
    return folds


def versus(election: Election, held: Mapping[str, np.ndarray]) -> dict[str, Versus]:
    """Per task, the soup beside the vote, on the same resamples of the rows.

    Args:
        held: per task ``(repeats, rows)``, what soups say that were chosen without these rows.
    """
    found = {}
    for task, elected in election.tasks.items():
        labels, score = elected.ballot.labels, elected.ballot.score
        soup = judge(held[task], labels, score=score, seed=0)
        vote = judge(elected.held.decisions, labels, score=score, seed=0)
        found[task] = Versus(soup.estimate, vote.estimate, soup.over(vote))
    return found


@dataclass(frozen=True)
class SoupCard:
    """What came out.

    Attributes:
        created: UTC, ISO 8601.
        tried: trials, the best first.
        passed_over: trials of another shape or max_length than the best one.
        task_scores: per task, the soup's metric on the validation rows, all of which chose it.
        vote_scores: per task, that of the recipe's vote on the same rows.
        estimates: per task, what the soup and the vote score on rows that chose nothing in them, and by how much the
            soup is better; none where a task has too few rows for that.
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
    estimates: Mapping[str, Versus] | None
    within: float
    files: Mapping[str, str]

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(each.key for each in self.tried if each.kept)

    @property
    def objective(self) -> Versus | None:
        """The means over tasks of the estimates."""
        if self.estimates is None:
            return None
        every = self.estimates.values()
        kinds = ([each.soup for each in every], [each.vote for each in every], [each.gain for each in every])
        return Versus(*map(Estimate.mean, kinds))

    @property
    def score(self) -> float:
        """The mean over tasks: the estimates', or else that of the rows that chose it."""
        return self.objective.soup.score if self.objective else fmean(self.task_scores.values())

    @property
    def vote(self) -> float:
        """The vote's, of the same rows."""
        return self.objective.vote.score if self.objective else fmean(self.vote_scores.values())

    @property
    def kept(self) -> bool:
        return self.score >= self.vote - self.within

    @property
    def verdict(self) -> str:
        """What came out, in one sentence, and what the numbers are worth."""
        said = (
            (self.objective.soup, self.objective.vote) if self.objective else (f"{self.score:.4f}", f"{self.vote:.4f}")
        )
        what = f"The soup of {counted(len(self.members), 'trial')} scores {said[0]}, the vote {said[1]}"
        short = "" if self.kept else f" not kept, for it is more than {self.within:g} below"
        where = "the rows that chose them, which flatter both"
        if self.objective:
            where = "rows that had no part in choosing what went into them (five folds, 95 % interval)"
        return f"{what}: it is{short or ' kept'}. These are scores on {where}."

    def to_json(self) -> str:
        said = {"members": self.members, "score": self.score, "vote": self.vote, "kept": self.kept}
        said["objective"] = asdict(self.objective) if self.objective else None
        return json.dumps({**asdict(self), **said}, ensure_ascii=False, indent=2) + "\n"

    def to_markdown(self) -> str:
        """The card as a page for people."""
        rows = [
            (each.key, f"{each.alone:.4f}", f"{each.score:.4f}", "yes" if each.kept else "no") for each in self.tried
        ]
        tasks: list[tuple[str, ...]]
        tasks = [(name, f"{score:.4f}", f"{self.vote_scores[name]:.4f}") for name, score in self.task_scores.items()]
        if self.estimates:
            tasks = [(name, str(each.soup), str(each.vote), str(each.gain)) for name, each in self.estimates.items()]
        others = (
            f"Passed over, of another shape than the best: {', '.join(self.passed_over)}." if self.passed_over else ""
        )
        return "\n".join(
            [
                f"# Soup `{self.recipe}` of study `{self.study}`",
                "",
                f"Made {self.created}. {self.verdict} The first table's scores are those of the rows that chose.",
                "",
                *([others, ""] if others else []),
                *table(("trial", "alone", "the soup with it", "in the soup"), rows),
                "",
                *table(("task", "soup", "vote", "difference")[: len(tasks[0])], tasks),
                "",
                *files_section(self.files),
            ]
        )
