"""Builds task specifications from the tasks of a study file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from tutti.config.layouts import GLUE_NAMES
from tutti.config.study import TEXTS, FormatName, Split, TaskConfig
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.glue import Glue
from tutti.tasks.layouts.hub import Hub
from tutti.tasks.layouts.protocol import FileLayout, Layout
from tutti.tasks.layouts.soft import SoftLabels
from tutti.tasks.layouts.table import Table
from tutti.tasks.layouts.tabs import lines_of
from tutti.tasks.metrics import is_regression


def submission_of(config: TaskConfig) -> str:
    """The submission format of a task: its own, or that of its layout, or CSV where its layout has none."""
    return config.submission or (config.layout if config.layout in get_args(FormatName) else "csv")


@dataclass(frozen=True)
class CleaningSteps:
    """Cleaning steps for a task's rows; see ``tutti.data.clean``. Broken rows are repaired by the layout."""

    emoji: str | None = None
    emoticons: bool = False
    repeated_punctuation: bool = False
    broken_rows: bool = False
    duplicates: bool = False


@dataclass(frozen=True)
class ExtraRows:
    """A further file of training rows, its layout, and the weight of each of its rows in the loss."""

    path: Path
    weight: float
    layout: Layout


@dataclass(frozen=True)
class TaskSpec:
    """Where a task's rows are and how they are read.

    Attributes:
        name: the task's name.
        layout: reads the sources, and writes files that ``extra_layout`` can read.
        extra_layout: reads the files of ``extra_train`` with hard labels.
        sources: maps parts (``train``, ``validation``, ``test`` or ``test-NAME``, ``unlabeled``) to files or splits.
        pair: whether a row has two texts.
        metric: as in ``tutti.tasks.metrics``.
        submission: ``competition``, ``glue`` or ``csv``.
        extra_train: further training files.
        cleaning: steps applied to the rows after reading.
        group: the text, ``text`` or ``text_b``, that rows of one group share; None where the layout reads the groups,
            if there are any.
        plain_files: whether the sources are files; otherwise they are splits of a data set.
    """

    name: str
    layout: Layout
    extra_layout: Layout
    sources: Mapping[str, str]
    pair: bool
    metric: str
    submission: str
    extra_train: tuple[ExtraRows, ...] = ()
    cleaning: CleaningSteps = field(default_factory=CleaningSteps)
    plain_files: bool = True
    group: str | None = None

    @property
    def regression(self) -> bool:
        """Whether its labels are numbers, which follows from its metric."""
        return is_regression(self.metric)

    @property
    def training_suffix(self) -> str:
        """The suffix of a training file written by ``layout``: that of ``train``, or JSON Lines for data sets."""
        return Path(self.sources["train"]).suffix if self.plain_files else ".jsonl"


def task_specs(tasks: Mapping[str, TaskConfig], split: Split | None = None) -> list[TaskSpec]:
    """The specifications of all tasks, in the order of the study file."""
    return [task_spec(name, config, split) for name, config in tasks.items()]


def task_spec(name: str, config: TaskConfig, split: Split | None = None) -> TaskSpec:
    """The specification of one task of a study file that was loaded, and so has the keys that its layout needs.

    Args:
        split: names columns of groups and folds to read; by default none.
    """
    group = split.group_of(name) if split else None
    column = None if group in TEXTS else group
    layout, extra_layout, pair = _layouts(name, config, group=column, fold=split.fold_column if split else None)
    sources = {"train": config.train, "validation": config.validation, **config.test_sets()}
    sources["unlabeled"] = config.unlabeled
    return TaskSpec(
        name=name,
        layout=layout,
        extra_layout=extra_layout,
        sources={part: source for part, source in sources.items() if source is not None},
        pair=pair,
        metric=config.metric,
        submission=submission_of(config),
        extra_train=tuple(
            ExtraRows(extra.path, extra.weight, SoftLabels(pair) if extra.labels == "soft" else extra_layout)
            for extra in config.extra_train
        ),
        cleaning=CleaningSteps(**config.cleaning.model_dump()),
        plain_files=config.layout != "hub",
        group=group if group in TEXTS else None,
    )


def _layouts(name: str, config: TaskConfig, *, group: str | None, fold: str | None) -> tuple[Layout, Layout, bool]:
    """The layout, the layout of ``extra_train``, which has no groups and folds, and whether rows are pairs."""
    columns = config.columns
    table = Table(id=columns.id, text=columns.text, text_b=columns.text_b, label=columns.label)
    with_split = replace(table, group=group, fold=fold)
    match config.layout:
        case "competition":
            competition = Competition(pair=config.pair, repair=config.cleaning.broken_rows)
            return competition, competition, config.pair
        case "glue":
            glue = Glue(config.glue or GLUE_NAMES[name.lower()], repair=config.cleaning.broken_rows)
            return glue, glue, glue.pair
        case "table":
            return with_split, table, columns.text_b is not None
        case "hub":
            assert config.dataset is not None
            return Hub(config.dataset, config.subset, with_split), table, columns.text_b is not None


def new_rows_layout(spec: TaskSpec, file: Path) -> FileLayout:
    """The layout of a file with new rows to predict.

    A task that names its columns has them here too. For others, a file with the suffix of the task's own has its
    layout, unless its first line is a header with the column text; such a file, and any other, is a table with the
    columns text and, for pairs, text_b. A column id is optional, but must then be in every row.

    Raises:
        TaskFileError: where the file cannot be read.
    """
    match spec.layout:
        case Table():
            return spec.layout.with_ids(str(file))
        case Hub():
            return spec.layout.columns.with_ids(str(file))
        case Competition() | Glue():
            if file.suffix in {Path(source).suffix for source in spec.sources.values()} and not _has_header(file):
                return spec.layout
    return Table(text_b="text_b" if spec.pair else None).with_ids(str(file))


def _has_header(file: Path) -> bool:
    line = next(lines_of(str(file)), "")  # without tabs it is no row of the layout, so commas may separate names
    return "text" in (cell.strip('"') for cell in line.split("\t" if "\t" in line else ","))
