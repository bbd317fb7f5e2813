"""The study file, typed. A study consists of tasks, a backbone, a search space and a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tutti.config.cleaning import Cleaning
from tutti.config.columns import Columns
from tutti.config.metric_facts import FACTS, KindName, Needs, default_metric, kind_of, nearest_metric
from tutti.config.raw import in_one_text
from tutti.config.search_facts import Sampler, Scheduler
from tutti.config.space import Choice, SearchSpace
from tutti.config.strict import Strict, by_type
from tutti.config.task_files import Encoding, Files, Name, TestFiles
from tutti.config.template import parsed

InstructionFormat = Literal[
    "input-output",
    "prompt-completion",
    "alpaca",
    "self-instruct",
    "unnatural-instructions",
    "chip2",
    "guanaco",
    "hh",
    "chat",
]


class ReportSet(Strict):
    """Questions whose answers are letters, such as those of MMLU (arXiv 2009.03300), as rows of prompts and targets.

    The model answers with the letter that it takes for the likeliest next token. The accuracy is the mean over the
    values of ``by``.
    """

    file: str
    answers: Literal["letters"] = "letters"
    by: str | None = None  # a column, such as that of subjects
    format: InstructionFormat = "input-output"
    when: Literal["evaluations", "end"] = "evaluations"  # one that decides always has evaluations
    decides: bool = False  # whether its accuracy is the task's score, in place of the metric


Seed = Annotated[int, Field(ge=0, lt=2**32)]  # as numpy's older generator takes it
GlueKind = Literal["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"]
LayoutName = Literal["competition", "glue", "table", "hub", "instructions", "tokens"]
FormatName = Literal["competition", "glue", "csv"]
INSTRUCTION_COLUMNS = {"text": "input", "label": "output"}  # the default names of the format input-output
Objective = Literal["score", "gain", "seconds", "parameters", "disk"]
TEXTS = ("text", "text_b")  # that split.group names in any layout: the first and the second text
Weight = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
SHARE = 0.1  # default share of a task's training rows that is held out for validation

CHANGING = (
    "learning_rate",
    "head_learning_rate",
    "weight_decay",
    "pooling_dropout",
    "head_dropout",
    "rdrop_alpha",
    "adversarial_epsilon",
    "focal_gamma",
    "label_smoothing_factor",
    "max_grad_norm",
    "ema_decay",
)
"""Training keys that population-based training may change during a trial. All others define its weights or steps."""


class ExtraTrain(Strict):
    """A further file of training rows in the task's layout, such as the pseudo-labels of an earlier round."""

    path: Path
    weight: Annotated[float, Field(gt=0, le=1)] = 1.0  # of each row in the loss; rows of ``train`` have 1
    labels: Literal["hard", "soft"] = "hard"  # soft: a Parquet file with a probability for each class
    fold: Annotated[int, Field(ge=0)] | None = None  # trains in this fold alone, whose rows its labels know nothing of


def _known_metric(name: str) -> str:
    if name not in FACTS:
        rule, remedy = "be the name of a metric, or a mapping with the keys of your own", nearest_metric(name)
        raise PydanticCustomError("unknown_name", "{rule}", {"rule": rule, "remedy": remedy})
    return name


MetricName = Annotated[str, AfterValidator(_known_metric)]


class OwnMetric(Strict):
    """A metric of the user's own: a function of (labels, predictions) as NumPy arrays, in a Python file."""

    file: Path
    function: str
    needs: Needs  # what the predictions are
    higher_is_better: bool

    @field_validator("function")
    @classmethod
    def _check_function(cls, function: str) -> str:
        """Refuses the names of Tutti's own metrics, beside which it is logged."""
        if function in FACTS:
            raise ValueError("have a name that no metric of Tutti has")
        return function


MetricChoice = Annotated[
    Annotated[MetricName, Tag("named")] | Annotated[OwnMetric, Tag("own")], by_type((dict, OwnMetric), "own", "named")
]


class LikeSample(Strict):
    """A submission with the header, order and ids of a competition's own sample, and what its columns say."""

    like: Path


SubmissionChoice = Annotated[
    Annotated[FormatName, Tag("format")] | Annotated[LikeSample, Tag("sample")],
    by_type((dict, LikeSample), "sample", "format"),
]


def _texts(order: object) -> object:
    return tuple(map(str, order)) if isinstance(order, list | tuple) else order


Order = Annotated[bool | tuple[str, ...], BeforeValidator(_texts)]


class TaskConfig(Strict):
    """One labelled problem.

    ``train``, ``validation``, ``test`` and ``unlabeled`` are files, or for the layout ``hub`` split names of the data
    set ``dataset`` (a hub id or a folder). ``test`` may also name several sets: ``{round1: FILE, round2: FILE}``;
    ``train`` and ``unlabeled`` may be lists of files, whose rows are taken together. ``validation`` may name several
    sets too: the first one decides, the others are logged.
    """

    layout: LayoutName
    train: Files
    validation: TestFiles | None = None
    test: TestFiles | None = None
    unlabeled: Files | None = None
    extra_train: tuple[ExtraTrain, ...] = ()
    encoding: Encoding | None = None  # of text files that are not UTF-8
    dataset: str | None = None  # hub, and instructions that are read from there: id or folder
    subset: str | None = None  # hub: configuration name
    glue: GlueKind | None = None  # glue: its GLUE task; by default derived from the task's name
    format: InstructionFormat = "input-output"  # instructions: what a row of the file looks like
    generation: dict[str, Any] = Field(default_factory=dict)  # instructions: fields of transformers.GenerationConfig
    generate: bool | None = None  # instructions: write texts at each evaluation; by default where a metric needs them
    report_sets: dict[Name, ReportSet] = Field(default_factory=dict)  # instructions: questions to answer
    unit: Literal["word", "character"] | None = None  # tokens: what has a tag; by default as the training file has it
    spans: Literal["many", "overlapping", "one", "none"] | None = None  # tokens: that tags mark; many by default
    pair: bool = False  # competition: two texts per row
    max_rows: Annotated[int, Field(ge=2)] | None = None  # of every part, spread evenly over its file: for trial runs
    max_train_samples: Annotated[int, Field(ge=2)] | None = None  # the first rows of ``train`` alone
    max_eval_samples: Annotated[int, Field(ge=2)] | None = None  # validation rows at most, drawn by the split's seed
    columns: Columns = Columns()  # table and hub; of instructions and tokens id, text and label
    template: str | None = None  # table and hub: the text, composed of columns, in place of columns.text
    template_b: str | None = None  # the second text of a pair, in place of columns.text_b
    metric: MetricChoice = "macro_f1"  # decides; also tells classes from numbers; of instructions perplexity by default
    report: tuple[MetricName, ...] = ()  # metrics that are logged beside it
    ordered: Order = False  # whether its classes have an order, or the classes from low to high
    row_weight: str | None = None  # table and hub: the column of the training rows' weights in the loss
    submission: SubmissionChoice | None = None  # by default competition, glue or csv, depending on the layout
    cleaning: Cleaning = Cleaning()

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, values: Any) -> Any:
        """Fills in the defaults of the layout, so that they are stored and compared like explicit values."""
        if not isinstance(values, dict):
            return values
        columns = values.get("columns", {})
        if values.get("layout") == "instructions" and isinstance(columns, dict):
            values = {**values, "columns": {**INSTRUCTION_COLUMNS, **columns}}
        return {"metric": default_metric(values), **values}

    @field_validator("template", "template_b")
    @classmethod
    def _check_template(cls, template: str | None) -> str | None:
        if template is not None:
            parsed(template)
        return template

    @property
    def kind(self) -> KindName:
        """What its labels are, which follows from the other keys."""
        return kind_of(self.model_dump())

    @property
    def orders(self) -> bool:
        """Whether its template names both texts of a pair, ``columns.text`` and ``columns.text_b``."""
        return in_one_text(self.model_dump())

    @property
    def sample(self) -> Path | None:
        """The competition's sample submission, where the task names one."""
        return self.submission.like if isinstance(self.submission, LikeSample) else None

    @property
    def metric_name(self) -> str:
        """The name of the metric that decides; of one's own that of its function."""
        return self.metric.function if isinstance(self.metric, OwnMetric) else self.metric

    def files(self) -> dict[str, str]:
        """Maps part names to files or splits; of further files ``train-N`` and ``unlabeled-N``, N counted from 1."""
        found: dict[str, str] = {}
        for part, given in (("train", self.train), ("unlabeled", self.unlabeled)):
            listed = (given,) if isinstance(given, str) else given or ()
            found |= {f"{part}-{place}" if place else part: file for place, file in enumerate(listed)}
        sets = {"validation": self.validation} if isinstance(self.validation, str) else self.validation or {}
        found |= {f"report-{name}" if place else "validation": file for place, (name, file) in enumerate(sets.items())}
        return found | self.test_sets()

    def test_sets(self) -> dict[str, str]:
        """Maps part names to files: ``test-NAME`` for each set; ``test`` for a single file, or the set of that name."""
        sets = {"test": self.test} if isinstance(self.test, str) else self.test or {}
        return {"test" if name == "test" else f"test-{name}": file for name, file in sets.items()}


# By task where it is a mapping.
Group = Annotated[
    Annotated[str, Tag("column")] | Annotated[dict[Name, str], Field(min_length=1), Tag("columns")],
    by_type(dict, "columns", "column"),
]


class Split(Strict):
    """The validation split: stratified, shuffled, seeded. Tasks with a validation file of their own are not split.

    With ``folds`` a trial trains once per fold, on the others' rows, so that every row is validated once. Rows that
    share their texts or a value of ``group`` stay together, in all tasks.
    """

    validation: Annotated[float, Field(gt=0, lt=1)] | None = None  # share of rows; by default SHARE without folds
    folds: Annotated[int, Field(ge=2)] | None = None  # with fold_column what the column has, once the rows are read
    fold_column: str | None = None  # table and hub: each value is a fold
    group: Group | None = None  # a column of tables and data sets, or ``text`` or ``text_b`` of any layout
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _default_share(cls, values: Any) -> Any:
        """Fills in the default, so that it is stored and compared like an explicit value."""
        if isinstance(values, dict) and all(values.get(key) is None for key in ("folds", "fold_column", "validation")):
            return {**values, "validation": SHARE}
        return values

    def group_of(self, task: str) -> str | None:
        """The column of a task's groups, ``text`` or ``text_b``; None for a task without groups."""
        return self.group.get(task) if isinstance(self.group, dict) else self.group


class AnySearch(Strict):
    """What any search has: its budget and its sampler."""

    trials: Annotated[int, Field(ge=1)] = 8
    seed: Seed = 0
    sampler: Sampler = "tpe"
    enqueue: tuple[Annotated[dict[str, Choice], Field(min_length=1)], ...] = ()  # known good points, run first
    reduction_factor: Annotated[int, Field(ge=2)] = 2  # asha, hyperband: one in this many trials passes each rung
    max_hours: Annotated[float, Field(gt=0)] | None = None  # total duration of all runs of the study
    patience: Annotated[int, Field(ge=1)] | None = None  # the study ends after this many trials without a new best one
    max_trial_hours: Annotated[float, Field(gt=0)] | None = None  # a trial is ended soon after this time
    retries: Annotated[int, Field(ge=0)] = 2  # of a trial whose worker died, each from its last checkpoint


class Search(AnySearch):
    """The search of a study, with its objectives and its scheduler."""

    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)] = ("score",)  # optimised by the sampler
    warm_start: tuple[str, ...] = ()  # folders of older studies from which the sampler learns
    scheduler: Scheduler = "asha"
    grace_epochs: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1  # no trial is stopped earlier
    exchange_epochs: Annotated[int, Field(ge=1)] = 1  # pbt: epochs between two exchanges
    target_score: float | None = None  # the study ends once a finished trial reaches it

    @model_validator(mode="before")
    @classmethod
    def _default_scheduler(cls, values: Any) -> Any:
        """Studies with other objectives have no scheduler by default, because schedulers only see the score."""
        objectives = values.get("objectives") if isinstance(values, dict) else None
        if isinstance(objectives, list | tuple) and "scheduler" not in values and [*objectives] != ["score"]:
            return {**values, "scheduler": "none"}
        return values


class Resources(Strict):
    """The resources of one trial, and how many trials run concurrently."""

    workers: Annotated[int, Field(ge=1)] = 1
    cpus_per_worker: Annotated[int, Field(ge=1)] = 1
    gpus_per_worker: Annotated[float, Field(ge=0, le=1)] = 0  # at most one
    concurrent_trials: Annotated[int, Field(ge=1)] | None = None  # by default as many as the cluster can hold
    isolation: Literal["auto", "warm", "isolated"] = "auto"  # isolated: new worker processes for every trial

    def __str__(self) -> str:
        each = f"{self.cpus_per_worker} CPUs and {self.gpus_per_worker:g} GPUs"
        return f"workers: {self.workers}, each with {each}"

    @field_validator("gpus_per_worker")
    @classmethod
    def _check_shared_gpu(cls, gpus: float, info: ValidationInfo) -> float:
        """Refuses workers that share a GPU: Ray may place two of a trial on one, where NCCL does not work."""
        workers = info.data.get("workers", 1)
        if workers > 1 and gpus not in (0, 1):
            raise ValueError(f"be 0 or 1 where resources.workers is above 1; got {gpus:g} with {workers} workers")
        return gpus


class Storage(Strict):
    """Where studies are stored. On a cluster this must be a folder that every node sees, or on object storage."""

    database: str | None = None  # Optuna's database, postgresql://...; by default SQLite inside the study's folder
    path: Path | None = None  # by default $TUTTI_STUDIES, or ./studies; the study's folder is PATH/STUDY
    address: str | None = None  # of the studies on object storage, of which `path` has the working copies then
    patience: Annotated[float, Field(ge=0)] = 60.0  # seconds for which the database's server is waited for
    max_gigabytes: Annotated[float, Field(gt=0)] | None = None  # limit for ended trials' checkpoints; 1 GB = 10^9 bytes


class Tracking(Strict):
    """Where MLflow stores runs; by default SQLite inside the study's folder."""

    uri: str | None = None


class Ensemble(Strict):
    """The recipe of the ensemble command that ``tutti tune`` prints at its end."""

    recipe: str = "auto"


class StudyConfig(Strict):
    """A whole study file. ``training`` is checked by the training room, which knows the fields of TrainingArguments."""

    study: Name
    backbone: str  # hub id or folder
    tasks: Annotated[dict[Name, TaskConfig], Field(min_length=1)]
    objective_weights: dict[Name, Weight] = Field(
        default_factory=dict
    )  # of the tasks' scores in the study's; 1 for those not named
    split: Split = Split()
    training: dict[str, Any] = Field(default_factory=dict)
    search_space: SearchSpace = SearchSpace()
    search: Search = Search()
    resources: Resources = Resources()
    storage: Storage = Storage()
    tracking: Tracking = Tracking()
    ensemble: Ensemble = Ensemble()

    @field_validator("tasks")
    @classmethod
    def _check_task_names(cls, tasks: dict[str, TaskConfig]) -> dict[str, TaskConfig]:
        if len({name.lower() for name in tasks}) != len(tasks):
            raise ValueError("have names that differ in more than upper and lower case")
        return tasks

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each task in the study's score."""
        return {name: self.objective_weights.get(name, 1.0) for name in self.tasks}

    @property
    def evals_per_epoch(self) -> int:
        """Evaluations per epoch of each trial."""
        return int(self.training.get("evals_per_epoch", 1))
