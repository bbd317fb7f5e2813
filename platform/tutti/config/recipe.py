"""The recipe file, typed: who may vote, how votes are weighed, what is written."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tutti.config.study import Strict, SubmissionFormat


class Members(Strict):
    """Who may vote: the best ``top`` checkpoints by the study's objective, or task by task by that task's metric."""

    top: Annotated[int, Field(ge=1)] = 5
    by: Literal["objective", "task"] = "objective"


class PseudoLabels(Strict):
    """A row is labelled where the ensemble's confidence reaches ``threshold``."""

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.99


class Recipe(Strict):
    """A whole recipe file."""

    members: Members = Members()
    weights: Literal["uniform", "score"] = "uniform"  # score: in proportion to the validation score
    submission: SubmissionFormat | None = None  # by default each task's own
    pseudo_labels: PseudoLabels = PseudoLabels()
