"""The combination methods by their names in a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tutti.ensembling.methods.greedy import Greedy
from tutti.ensembling.methods.hard import HardVote
from tutti.ensembling.methods.protocol import Method, Score
from tutti.ensembling.methods.rank import RankAverage
from tutti.ensembling.methods.score import ScoreWeighted
from tutti.ensembling.methods.stacking import Stacking
from tutti.ensembling.methods.uniform import Uniform

# simplest first
METHODS: Mapping[str, Callable[[Score], Method]] = {
    "uniform": lambda score: Uniform(),
    "score": lambda score: ScoreWeighted(score),
    "rank": lambda score: RankAverage(),
    "hard": lambda score: HardVote(),
    "greedy": lambda score: Greedy(),
    "stacking": lambda score: Stacking(),
}


def combines_values(name: str) -> bool:
    """Whether the method supports values of a regression; the score does not matter."""
    return METHODS[name](lambda labels, decisions: 0.0).values
