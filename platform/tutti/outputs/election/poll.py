"""What an election is held of: the checkpoints that may vote, the rows by which they are chosen, and the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tutti.bank.electorate import Checkpoints
from tutti.config.recipe import Members, Method, Recipe
from tutti.outputs.election.estimates import Estimates

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.tasks.task import Task


class Rule(Members):
    """How an ensemble is chosen and combined: what a recipe says of it.

    ``method`` ``auto`` is stacking, of numbers ``uniform``, unless another is clearly better out of fold. ``decision``
    ``offsets`` are per class unless these score worse, or the metric is accuracy. ``calibration`` says whether
    pseudo-labels and ``tutti predict`` use confidences at the fitted temperature.
    """

    method: Method = "uniform"
    decision: Literal["argmax", "offsets"] = "argmax"
    calibration: Literal["none", "temperature"] = "none"

    @classmethod
    def of(cls, recipe: Recipe) -> Rule:
        """The rule of a recipe."""
        return cls(
            **recipe.members.model_dump(exclude={"studies"}),
            method=recipe.method,
            decision=recipe.decision,
            calibration=recipe.calibration,
        )


@dataclass(frozen=True, eq=False)
class Poll:
    """What an election is held of.

    Attributes:
        study: its name, for messages and cards.
        tasks: all tasks of the study. Each task's ensemble depends on those with the same texts.
        validation: by task, its validation rows in order: ``id``, ``text``, and ``text_b`` for pairs. A checkpoint with
            other validation rows is refused: it may have trained on the study's.
        bank: the checkpoints that may vote.
        rule: by which some of them are elected, and their votes combined.
        recipe_name: of the recipe that has the rule, for cards.
        folded: whether the study has folds, so that its validation rows differ from new rows: see ``FOLDED``.
        estimates: computes what is estimated out of fold, when it is asked for.
    """

    study: str
    tasks: Sequence[Task]
    validation: Mapping[str, DataFrame]
    bank: Checkpoints
    rule: Rule
    recipe_name: str = ""
    folded: bool = False
    estimates: Estimates = field(default_factory=Estimates)
