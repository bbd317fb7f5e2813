"""The study file, typed. One study = tasks + backbone + search space + budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tutti.config.numbers import as_it_stands
from tutti.config.space import Choice, SearchSpace

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # as numpy's older generator takes it
ClassMetric = Literal["macro_f1", "accuracy", "matthews", "f1"]
ValueMetric = Literal["pearson", "spearman", "pearson_spearman", "neg_mse"]  # of a task whose labels are numbers
Metric = Literal[ClassMetric, ValueMetric]
GlueKind = Literal["CoLA", "SST-2", "MRPC", "STS-B", "RTE", "QNLI", "WNLI"]
Layout = Literal["competition", "glue", "table", "hub"]
SubmissionFormat = Literal["competition", "glue", "csv"]
Sampler = Literal["tpe", "gp", "cmaes", "nsgaii", "nsgaiii", "qmc", "random", "grid"]
Objective = Literal["score", "gain", "seconds", "parameters", "disk"]
LEARNING = ("tpe", "gp", "cmaes", "nsgaii", "nsgaiii")  # samplers whose choice depends on earlier trials' scores

SHARE = 0.1  # of a task's training rows, held out for validation where a study says nothing


class Strict(BaseModel):
    """Unknown keys are errors, values are frozen, and numbers are numbers in the file too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, given: Any, info: ValidationInfo) -> Any:
        return as_it_stands(given, cls.model_fields[info.field_name or ""].annotation)


class Cleaning(Strict):
    """Competition cleaning. Everything is off unless asked for; rows to predict are never dropped."""

    emoji: Literal["zh", "en"] | None = None  # emoji to words of this language
    emoticons: bool = False  # [生病] to 生病
    repeated_punctuation: bool = False  # runs of the same punctuation mark to one
    broken_rows: bool = False  # mend rows broken by line feeds inside a text
    duplicates: bool = False  # drop training rows whose texts and label stood before


class ExtraTrain(Strict):
    """A further file of training rows in the task's own layout, such as a round's pseudo-labels."""

    path: Path
    weight: Annotated[float, Field(gt=0, le=1)] = 1.0  # of each row in the loss; a row of the task's own file has 1
    labels: Literal["hard", "soft"] = "hard"  # soft: a Parquet file with a probability for each class


class Columns(Strict):
    """Names of the columns of a table or hub data set. ``id`` none means the row number, counted from 0."""

    id: str | None = None
    text: str = "text"
    text_b: str | None = None
    label: str = "label"


def _file_or_sets(value: Any) -> str:
    return "sets" if isinstance(value, dict) else "file"


# Told apart by hand, so that a fault is reported once and not once for each member of the union.
TestFiles = Annotated[
    Annotated[str, Tag("file")] | Annotated[dict[Name, str], Field(min_length=1), Tag("sets")],
    Discriminator(_file_or_sets),
]


class TaskConfig(Strict):
    """One labelled problem.

    ``train``, ``validation``, ``test`` and ``unlabeled`` are files; for the layout ``hub`` they are split names of the
    data set ``dataset`` (a hub id or a folder). ``test`` may also name several sets: ``{round1: FILE, round2: FILE}``.
    """

    layout: Layout
    train: str
    validation: str | None = None
    test: TestFiles | None = None
    unlabeled: str | None = None
    extra_train: tuple[ExtraTrain, ...] = ()
    dataset: str | None = None  # hub: id or folder
    subset: str | None = None  # hub: configuration name
    glue: GlueKind | None = None  # glue: which of its layouts; by default the task's name
    pair: bool = False  # competition: two texts a row
    columns: Columns = Columns()  # table and hub
    metric: Metric = "macro_f1"  # also says whether labels are classes or numbers
    submission: SubmissionFormat | None = None  # by default competition, glue, or csv, after the layout
    cleaning: Cleaning = Cleaning()

    def test_sets(self) -> dict[str, str]:
        """Part name to file: ``test`` alone, or ``test-NAME`` for each named set."""
        if self.test is None:
            return {}
        if isinstance(self.test, str):
            return {"test": self.test}
        return {f"test-{name}": file for name, file in self.test.items()}


class Split(Strict):
    """Stratified, seeded, shuffled. Only tasks without a validation file of their own are split.

    With ``folds`` a trial trains once for each fold, on the rows of the others, so that every row is validated once.
    """

    validation: Annotated[float, Field(gt=0, lt=1)] | None = None  # the share held out; by default SHARE without folds
    folds: Annotated[int, Field(ge=2)] | None = None
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _share_without_folds(cls, given: Any) -> Any:
        """The default is written in, so that it is stored and compared like a value that was given."""
        if isinstance(given, dict) and given.get("folds") is None and given.get("validation") is None:
            return {**given, "validation": SHARE}
        return given


class Search(Strict):
    """The budget, and how points are chosen and stopped."""

    trials: Annotated[int, Field(ge=1)] = 8
    seed: Seed = 0
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)] = ("score",)  # what a finished trial is told by
    sampler: Sampler = "tpe"
    enqueue: tuple[Annotated[dict[str, Choice], Field(min_length=1)], ...] = ()  # known-good points: the first trials
    warm_start: tuple[str, ...] = ()  # folders of older studies, whose trials the sampler learns from
    scheduler: Literal["asha", "hyperband", "median", "pbt", "none"] = "asha"
    grace_epochs: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1  # no trial is stopped before
    exchange_epochs: Annotated[int, Field(ge=1)] = 1  # pbt: the trials meet after so many
    reduction_factor: Annotated[int, Field(ge=2)] = 2  # asha, hyperband: one trial in so many passes each rung
    max_hours: Annotated[float, Field(gt=0)] | None = None  # of all runs of the study together
    target_score: float | None = None  # a finished trial that has it ends the study
    patience: Annotated[int, Field(ge=1)] | None = None  # trials after the best one that may end without being better
    max_trial_hours: Annotated[float, Field(gt=0)] | None = None  # a trial ends soon after so many
    retries: Annotated[int, Field(ge=0)] = 2  # of a trial whose worker died, each from its last checkpoint

    @model_validator(mode="before")
    @classmethod
    def _all_run_to_their_end(cls, given: Any) -> Any:
        """Without a scheduler of their own, studies of other objectives have none: a scheduler sees the score alone."""
        objectives = given.get("objectives") if isinstance(given, dict) else None
        if isinstance(objectives, list | tuple) and "scheduler" not in given and [*objectives] != ["score"]:
            return {**given, "scheduler": "none"}
        return given


class Resources(Strict):
    """What one trial takes, and how many run at a time."""

    workers: Annotated[int, Field(ge=1)] = 1
    cpus_per_worker: Annotated[int, Field(ge=1)] = 1
    gpus_per_worker: Annotated[float, Field(ge=0, le=1)] = 0  # a worker computes on one
    concurrent_trials: Annotated[int, Field(ge=1)] | None = None  # by default as many as fit
    isolation: Literal["auto", "warm", "isolated"] = "auto"  # isolated: new worker processes for every trial

    @field_validator("gpus_per_worker")
    @classmethod
    def _workers_share_no_gpu(cls, gpus: float, given: ValidationInfo) -> float:
        """Ray may put both halves on one GPU, between whose processes NCCL refuses to work."""
        workers = given.data.get("workers", 1)
        if workers > 1 and gpus not in (0, 1):
            raise ValueError(f"be 0 or 1 where resources.workers is above 1; got {gpus:g} with {workers} workers")
        return gpus


class Storage(Strict):
    """Where studies live. On a cluster: a folder that every node sees."""

    database: str | None = None  # Optuna's, at postgresql://; by default SQLite inside the study's folder
    path: Path | None = None  # by default $TUTTI_STUDIES, or ./studies; the study's folder is PATH/STUDY
    max_gigabytes: Annotated[float, Field(gt=0)] | None = None  # of all ended trials' checkpoints; 1 GB is 10^9 bytes


class Tracking(Strict):
    """Where MLflow keeps runs: by default SQLite inside the study's folder."""

    uri: str | None = None


class Ensemble(Strict):
    """What ``tutti tune`` prints at its end as the next command."""

    recipe: str = "auto"


class StudyConfig(Strict):
    """A whole study file. ``training`` is checked by the training room, which knows TrainingArguments' fields."""

    study: Name
    backbone: str  # hub id or folder
    tasks: Annotated[dict[Name, TaskConfig], Field(min_length=1)]
    split: Split = Split()
    training: dict[str, Any] = {}
    search_space: SearchSpace = SearchSpace()
    search: Search = Search()
    resources: Resources = Resources()
    storage: Storage = Storage()
    tracking: Tracking = Tracking()
    ensemble: Ensemble = Ensemble()

    @field_validator("tasks")
    @classmethod
    def _tasks_differ_in_more_than_case(cls, tasks: dict[str, TaskConfig]) -> dict[str, TaskConfig]:
        if len({name.lower() for name in tasks}) != len(tasks):
            raise ValueError("have names that differ in more than upper and lower case")
        return tasks

    @property
    def evals_per_epoch(self) -> int:
        """How many evaluations an epoch of each trial has."""
        return int(self.training.get("evals_per_epoch", 1))
