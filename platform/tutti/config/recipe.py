"""The recipe file, typed: who may vote, how votes become one answer, what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tutti.config.study import Strict, SubmissionFormat

Method = Literal["auto", "uniform", "score", "best", "rank", "hard", "greedy", "stacking"]


class Members(Strict):
    """Who may vote: the best checkpoints by the study's objective, or task by task by that task's metric.

    ``top`` is how many at most. ``within`` is how much less than the best one they may score, and ``diversity`` by what
    share of the validation rows each must differ from every better one. All three hold together.

    ``filter`` lets only those trials vote that MLflow finds with it, by tag or parameter, as the field above
    MLflow's table does. ``studies`` are others, by name or folder, whose trials may vote beside the own.
    """

    top: Annotated[int, Field(ge=1)] | None = 5
    by: Literal["objective", "task"] = "objective"
    within: Annotated[float, Field(ge=0)] | None = None
    diversity: Annotated[float, Field(ge=0, lt=1)] = 0.0
    filter: str | None = None
    studies: tuple[str, ...] = ()


class PseudoLabels(Strict):
    """Which unlabelled rows get a label, and what it is; see ``tutti.ensembling.pseudo.Labelling``."""

    select: Literal["threshold", "quantile", "prior", "all"] = "threshold"
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.99  # threshold: lowest confidence of the ensemble
    share: Annotated[float, Field(gt=0, le=1)] = 0.5  # quantile: of each class's rows; prior: of all candidates
    agreement: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of the members that say the label alone
    labels: Literal["hard", "soft"] = "hard"  # soft: a probability for each class
    max_drift: Annotated[float, Field(gt=0, le=1)] | None = 0.05  # of a class's share from that of the training rows

    @model_validator(mode="after")
    def _no_idle_keys(self) -> PseudoLabels:
        for key, users in (("threshold", ("threshold",)), ("share", ("quantile", "prior"))):
            if key in self.model_fields_set and self.select not in users:
                raise ValueError(f"have no `{key}` with `select: {self.select}`, which does not look at it")
        return self


class SoupRule(Strict):
    """The mean of the members' weights is kept where it scores at most ``within`` less than their vote."""

    within: Annotated[float, Field(ge=0)] = 0.002


class Submission(Strict):
    """How submissions are laid out: by one ``format`` for all tasks, or by each task's own.

    ``templates`` are samples of CSV files, by task, or by TASK/SET for one of several test sets: the file written has
    their header and their rows in their order. ``submission: csv`` is short for ``submission: {format: csv}``.
    """

    format: SubmissionFormat | None = None
    templates: dict[str, Path] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _format_alone(cls, given: Any) -> Any:
        return {"format": given} if given is None or isinstance(given, str) else given


class Recipe(Strict):
    """A whole recipe file."""

    members: Members = Members()
    method: Method = "uniform"  # auto: in each task the one that does best on rows that it was not fitted to
    decision: Literal["argmax", "offsets"] = "argmax"  # offsets: by class, where they win
    calibration: Literal["none", "temperature"] = "none"  # of the confidence of pseudo-labels
    submission: Submission = Submission()
    pseudo_labels: PseudoLabels = PseudoLabels()
    soup: SoupRule = SoupRule()  # of `tutti soup`
