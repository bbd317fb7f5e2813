"""The combination methods by their names in a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tutti.ensembling.methods.greedy import Greedy
from tutti.ensembling.methods.hard import HardVote
from tutti.ensembling.methods.protocol import Method
from tutti.ensembling.methods.rank import RankAverage
from tutti.ensembling.methods.score import ScoreWeighted
from tutti.ensembling.methods.stacking import Stacking
from tutti.ensembling.methods.uniform import Uniform
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.scorer import Scorer

# simplest first
METHODS: Mapping[str, Callable[[Scorer], Method]] = {
    "uniform": lambda score: Uniform(),
    "score": lambda score: ScoreWeighted(score),
    "rank": lambda score: RankAverage(score.kind),
    "hard": lambda score: HardVote(score.kind),
    "greedy": lambda score: Greedy(score.kind),
    "stacking": lambda score: Stacking(score.kind),
}


def combines_values(name: str) -> bool:
    """Whether the method combines kinds that are no probabilities."""
    return METHODS[name](Scorer(KINDS["value"], lambda labels, decisions: 0.0)).values
