"""The recipe file, typed: which checkpoints vote, how their votes are combined, and what is written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tutti.config.strict import Strict
from tutti.config.study import FormatName

Method = Literal["auto", "uniform", "score", "rank", "hard", "greedy", "stacking"]


class Members(Strict):
    """Which checkpoints vote: the best ones by the study's objective, or for each task by its metric.

    ``top`` is their maximum number, ``within`` how far below the best one they may score, and ``diversity`` the share
    of validation rows on which each must differ from every better one. All three conditions apply together.

    ``filter`` is an MLflow search filter on tags and parameters, as in the search field above MLflow's table: only
    trials that it matches may vote. ``studies`` are further studies whose trials may vote too, by name, or by folder
    relative to the current one. ``guests`` says whether predictions vote that are no trial's (``tutti bank import``).
    """

    top: Annotated[int, Field(ge=1)] | None = 5
    by: Literal["objective", "task"] = "objective"
    within: Annotated[float, Field(ge=0)] | None = None
    diversity: Annotated[float, Field(ge=0, lt=1)] = 0.0
    filter: str | None = None
    studies: tuple[str, ...] = ()
    guests: bool = True


class PseudoLabels(Strict):
    """Which unlabelled rows get a label, and which.

    Attributes:
        select: ``threshold`` takes rows with at least the confidence ``threshold``; ``quantile`` takes the most
            confident ``share`` of each class (class-balanced self-training, Zou et al. 2018); ``prior`` takes the most
            confident rows of each class, in total ``share`` of the candidates with the class shares of the training
            rows, or fewer if a class has fewer rows; ``all`` takes every row; ``parts``, of tags, takes single words
            and spans with at least the confidence ``threshold``, the others of their rows being unknown.
        agreement: minimum share of members that predict the label themselves, for every ``select``.
        labels: ``hard`` for the most likely class, ``soft`` for the probabilities.
        known_rows: whether rows whose texts trials have seen with a label are labelled too: soft labels of training
            rows then teach a student what the teachers make of them (distillation), by fold if there are folds.
        max_drift: maximum absolute difference of a class's share among the labels from its share among the training
            rows; none for no limit.
    """

    select: Literal["threshold", "quantile", "prior", "all", "parts"] = "threshold"
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.99
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    agreement: Annotated[float, Field(ge=0, le=1)] = 0.0
    labels: Literal["hard", "soft"] = "hard"
    known_rows: bool = False
    max_drift: Annotated[float, Field(gt=0, le=1)] | None = 0.05


class SoupRule(Strict):
    """When a soup (the mean of the members' weights) is kept: if it scores at most ``within`` below their ensemble."""

    within: Annotated[float, Field(ge=0)] = 0.002


class Submission(Strict):
    """The format of submissions: one ``format`` for all tasks, or by default each task's own.

    ``templates`` are sample CSV files, by task, or by TASK/SET for one of several test sets. The file written has the
    template's header, and its rows in the same order. ``submission: csv`` is short for ``submission: {format: csv}``.
    """

    format: FormatName | None = None
    templates: dict[str, Path] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _expand_format(cls, value: Any) -> Any:
        return {"format": value} if value is None or isinstance(value, str) else value


class Recipe(Strict):
    """A whole recipe file."""

    members: Members = Members()
    method: Method = "uniform"  # auto: for each task stacking (of numbers uniform), or what is clearly better
    decision: Literal["argmax", "offsets"] = "argmax"  # offsets: per class, unless they score worse
    calibration: Literal["none", "temperature"] = "none"  # of the confidences of pseudo-labels and of `tutti predict`
    submission: Submission = Submission()
    pseudo_labels: PseudoLabels = PseudoLabels()
    soup: SoupRule = SoupRule()  # for `tutti soup`

    @model_validator(mode="after")
    def _soft_labels_are_probabilities(self) -> Recipe:
        if self.pseudo_labels.labels == "soft" and self.method in ("rank", "hard"):
            raise ValueError(
                f"set another method than {self.method} with `labels: soft`, since shares of ranks or votes are no "
                "probabilities, at any temperature"
            )
        return self

    @property
    def sha256(self) -> str:
        """The SHA-256 of the content, defaults included, as 64 hexadecimal digits."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()
