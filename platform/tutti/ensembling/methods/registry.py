"""The combination methods by their names in a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tutti.ensembling.combine import mean_of
from tutti.ensembling.methods.consensus import Consensus, Majority
from tutti.ensembling.methods.greedy import Greedy
from tutti.ensembling.methods.hard import HardVote
from tutti.ensembling.methods.protocol import Method, Standardized
from tutti.ensembling.methods.rank import RankAverage
from tutti.ensembling.methods.score import ScoreWeighted
from tutti.ensembling.methods.stacking import Stacking
from tutti.ensembling.methods.uniform import Uniform
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A method with its facts.

    Attributes:
        make: makes it for the score of the task whose votes it combines.
        values: whether it combines kinds that are no probabilities too.
        texts: whether it combines texts; these have no ranks and no means.
        auto: its place among the methods that ``auto`` compares for probabilities, whose first is the default; None if
            it has none. The more methods compete, the more often chance decides, so those that almost equal the mean of
            probabilities (score) or lose to it (rank, hard) stay out: see benchmarks/auto_method.py.
        auto_values: the same for values. A correlation may gain from the mean of ranks.
        auto_texts: with fewer rows of different texts ``auto`` does not try it.
    """

    make: Callable[[Scorer], Method]
    values: bool = True
    texts: bool = False
    auto: int | None = None
    auto_values: int | None = None
    auto_texts: int = 0


# simplest first
METHODS: Mapping[str, Entry] = {
    "uniform": Entry(
        make=lambda score: Consensus(score) if score.kind.generative else Uniform(), texts=True, auto=1, auto_values=0
    ),
    "score": Entry(
        make=lambda score: Consensus(score, ScoreWeighted(score)) if score.kind.generative else ScoreWeighted(score),
        texts=True,
    ),
    "rank": Entry(make=lambda score: RankAverage(score.kind), auto_values=1),
    "hard": Entry(
        make=lambda score: Majority(score) if score.kind.generative else HardVote(score.kind), values=False, texts=True
    ),
    "greedy": Entry(make=lambda score: Greedy(score.kind), auto=2, auto_values=2, auto_texts=300),  # overfits most
    "stacking": Entry(make=lambda score: Stacking(score.kind), auto=0, auto_values=3),
}


def method_of(name: str, score: Scorer) -> Method:
    """The method of a name, for the score of the task whose votes it combines."""
    method = METHODS[name].make(score)
    return Standardized(method) if score.kind.comparative else method


def plain_vote(task: Task, votes: np.ndarray) -> np.ndarray:
    """The vote of members with equal weights, without any choice: their mean, or of texts what agrees best with all.

    Args:
        votes: ``(members, rows, ...)`` outputs.

    Returns:
        ``(rows, ...)`` float32, or texts.
    """
    if not task.kind.generative:
        return mean_of(list(votes))
    return Consensus(Scorer.of(task.as_voted)).fit(votes, votes[0]).combine(votes)


def compared(*, probabilities: bool, texts: int, generative: bool = False) -> tuple[str, ...]:
    """The methods that ``auto`` compares on so many rows of different texts, its default first."""
    if generative:
        return "uniform", "hard"
    places = {
        name: entry.auto if probabilities else entry.auto_values
        for name, entry in METHODS.items()
        if texts >= entry.auto_texts
    }
    return tuple(sorted((name for name in places if places[name] is not None), key=lambda name: places[name] or 0))
