"""The card of a soup: its ingredients, and its score compared with the vote of the same trials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from tutti.config.objective_weights import listed_if_unequal
from tutti.ensembling.nested import MIN_TEXTS, MIN_TEXTS_NESTED, Estimate, Fold, splits
from tutti.ensembling.select import ROUNDING
from tutti.errors import counted
from tutti.outputs.formatting import files_section, page, table
from tutti.tasks.objective import weighted_mean

if TYPE_CHECKING:
    from tutti.outputs.election.members import Election


@dataclass(frozen=True)
class Tried:
    """One trial that was tried as an ingredient.

    Attributes:
        alone: the trial's own validation score.
        score: the score of the soup with it.
        kept: whether it is in the soup.
    """

    key: str
    alone: float
    score: float
    kept: bool


@dataclass(frozen=True)
class Versus:
    """Nested estimates of a soup and a vote, and the paired gain of the soup over the vote."""

    soup: Estimate
    vote: Estimate
    gain: Estimate


def refolded(election: Election, *, by: Literal["objective", "task"]) -> list[Fold] | None:
    """The folds of a nested estimate: for each fifth of the rows, the voters chosen on the other four fifths.

    Args:
        by: what ranks the candidates, as in ``Rule``.

    Returns:
        None if a task has too few rows of different texts for the estimate.
    """
    elected = election.tasks
    if min(each.ballot.texts for each in elected.values()) < MIN_TEXTS_NESTED:
        return None
    # One soup serves all tasks, so a text is held out in all of them. Folds are stratified by its first task's labels.
    groups = np.concatenate([each.ballot.groups for each in elected.values()])
    strata: list[np.ndarray] = []
    for each in elected.values():
        own = np.unique(each.ballot.score.kind.strata(each.ballot.labels), return_inverse=True)[1]
        strata.append(own + (strata[-1].max() + 1 if strata else 0))
    folds = []
    for _, _, rows_held_out in splits(np.concatenate(strata), groups, repeats=1, seed=0):
        texts = groups[rows_held_out]
        held_out = {name: np.flatnonzero(np.isin(each.ballot.groups, texts)) for name, each in elected.items()}
        rows = {name: np.flatnonzero(~np.isin(each.ballot.groups, texts)) for name, each in elected.items()}
        if any(len(np.unique(each.ballot.groups[rows[name]])) < MIN_TEXTS for name, each in elected.items()):
            return None
        changes = {
            name: each.procedure.weight * (each.ballot.scores_on(rows[name]) - each.ballot.scores)
            for name, each in elected.items()
        }
        voters: dict[str, None] = {}
        for name, each in elected.items():
            change = sum(changes.values()) if by == "objective" else changes[name]
            standing = each.procedure.standing + each.procedure.share * change
            decisions, kind = each.ballot.decisions[:, rows[name]], each.ballot.score.kind
            chosen = each.procedure.selection.choose(standing, decisions, kind)
            voters |= dict.fromkeys(each.keys[index] for index in chosen)
        folds.append(Fold(tuple(voters), rows, held_out))
    return folds


def versus(election: Election, soup_decisions: Mapping[str, np.ndarray]) -> dict[str, Versus]:
    """By task, the soup compared with the vote, each in one folding, on the same bootstrap resamples of the rows.

    Args:
        soup_decisions: by task, ``(1, rows)`` decisions of the soups of ``refolded``'s folds.
    """
    comparisons = {}
    for task, elected in election.tasks.items():
        soup = elected.ballot.judge(soup_decisions[task])
        vote = elected.ballot.judge(elected.held_out.scored[:1])  # one folding, like the soup's
        comparisons[task] = Versus(soup.estimate, vote.estimate, soup.over(vote))
    return comparisons


@dataclass(frozen=True)
class SoupCard:
    """The card of a soup.

    Attributes:
        created: UTC, ISO 8601.
        tried: trials, best first.
        passed_over: trials whose shape, or limit of long texts, differs from the best trial's.
        task_scores: by task, the soup's metric on the validation rows, all of which chose it.
        vote_scores: by task, that of the recipe's vote on the same rows.
        estimates: by task, the nested estimates of soup and vote; none if a task has too few rows of different texts.
        within: how far the soup's mean may be below the vote's.
        files: SHA-256 of every file beside the card, by path.
        overlap: of the tasks' validation rows, as in ``Estimate.mean``.
        weights: of the tasks in the study's score.
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
    overlap: tuple[tuple[float, ...], ...]
    weights: Mapping[str, float]
    kind: str = field(default="soup", init=False)

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
        return Versus(*(Estimate.mean(kind, self.overlap, [*self.weights.values()]) for kind in kinds))

    @property
    def score(self) -> float:
        """The soup's mean over tasks: of the estimates, if any, otherwise on the rows that chose it."""
        return self.objective.soup.score if self.objective else self._mean(self.task_scores)

    @property
    def vote(self) -> float:
        """The vote's mean over tasks, on the same rows as ``score``."""
        return self.objective.vote.score if self.objective else self._mean(self.vote_scores)

    def _mean(self, by_task: Mapping[str, float]) -> float:
        return weighted_mean([*by_task.values()], [self.weights[task] for task in by_task])

    @property
    def kept(self) -> bool:
        return self.score >= self.vote - self.within - ROUNDING

    @property
    def verdict(self) -> str:
        """The result in one sentence, and how far its numbers can be trusted."""
        soup, vote = f"{self.score:.4f}", f"{self.vote:.4f}"
        if self.objective:
            soup, vote = str(self.objective.soup), str(self.objective.vote)
        what = f"The soup of {counted(len(self.members), 'trial')} scores {soup}, the vote {vote}"
        weights = listed_if_unequal(self.weights)
        weighted = f" They weigh the tasks: {weights}." * bool(weights)
        short = "" if self.kept else f" not kept, for it is more than {self.within:g} below"
        where = "the rows that chose them, which flatter both"
        if self.objective:
            where = "rows that had no part in choosing what went into them (five folds, 95 % interval)"
        return f"{what}: it is{short or ' kept'}. These are scores on {where}.{weighted}"

    def to_json(self) -> str:
        derived = {"members": self.members, "score": self.score, "vote": self.vote, "kept": self.kept}
        derived["objective"] = asdict(self.objective) if self.objective else None
        return json.dumps({**asdict(self), **derived}, ensure_ascii=False, indent=2) + "\n"

    def to_markdown(self) -> str:
        """The card as a Markdown page."""
        rows = [
            (each.key, f"{each.alone:.4f}", f"{each.score:.4f}", "yes" if each.kept else "no") for each in self.tried
        ]
        tasks: list[tuple[str, ...]]
        tasks = [(name, f"{score:.4f}", f"{self.vote_scores[name]:.4f}") for name, score in self.task_scores.items()]
        if self.estimates:
            tasks = [(name, str(each.soup), str(each.vote), str(each.gain)) for name, each in self.estimates.items()]
        passed_over = f"Skipped, since their shape differs from the best's: {', '.join(self.passed_over)}."
        return page(
            f"# Soup `{self.recipe}` of study `{self.study}`",
            f"Made {self.created}. {self.verdict} The first table's scores are those of the rows that chose.",
            passed_over if self.passed_over else "",
            table(("trial", "alone", "the soup with it", "in the soup"), rows),
            table(("task", "soup", "vote", "difference")[: len(tasks[0])], tasks),
            *files_section(self.files),
        )
