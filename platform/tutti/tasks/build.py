"""Builds task specifications from the tasks of a study file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from tutti.config.cleaning import Cleaning
from tutti.config.columns import Columns
from tutti.config.layouts import GLUE_NAMES
from tutti.config.load import load_recipe
from tutti.config.metric_facts import FACTS, KindName, kind_of
from tutti.config.study import TEXTS, FormatName, LikeSample, OwnMetric, Split, StudyConfig, TaskConfig
from tutti.config.template import exchanged
from tutti.errors import ConfigError, TaskFileError
from tutti.tasks.kinds.protocol import Kind
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.glue import Glue
from tutti.tasks.layouts.hub import Hub
from tutti.tasks.layouts.instructions import Instructions
from tutti.tasks.layouts.packed import declare_encoding, unpacked_name
from tutti.tasks.layouts.protocol import FileLayout, Layout
from tutti.tasks.layouts.soft import SoftLabels
from tutti.tasks.layouts.table import SUFFIXES, Table, column_names
from tutti.tasks.layouts.tabs import lines_of
from tutti.tasks.layouts.tagged import Tagged, natural_unit
from tutti.tasks.task import Generation


def sample_ids_of(study: StudyConfig) -> dict[str, tuple[str, ...]]:
    """By task, the names that its sample submission and those of the study's own recipe give to the ids.

    A recipe or sample that cannot be read, perhaps since it was moved, has none here: whoever needs it will say so.
    """
    samples = [(name, task.sample) for name, task in study.tasks.items() if task.sample]
    with suppress(ConfigError):
        samples += load_recipe(study.ensemble.recipe)[1].submission.templates.items()
    found: dict[str, tuple[str, ...]] = {}
    for name, sample in samples:
        with suppress(TaskFileError):
            task = name.split("/")[0]
            found[task] = (*found.get(task, ()), *column_names(str(sample))[:1])
    return found


def submission_of(config: TaskConfig) -> str:
    """The submission format of a task: its own, or that of its layout, or CSV where its layout has none."""
    if isinstance(config.submission, LikeSample):
        return "csv"
    return config.submission or (config.layout if config.layout in get_args(FormatName) else "csv")


@dataclass(frozen=True)
class ExtraRows:
    """A further file of training rows, its layout, the weight of each of its rows in the loss, and the fold that alone
    trains on them, if any.
    """

    path: Path
    weight: float
    layout: Layout
    fold: int | None = None


@dataclass(frozen=True)
class TaskSpec:
    """Where a task's rows are and how they are read.

    Attributes:
        name: the task's name.
        layout: reads the sources, and writes files that ``extra_layout`` can read.
        extra_layout: reads the files of ``extra_train`` with hard labels.
        sources: maps parts (``train``, ``validation``, ``test`` or ``test-NAME``, ``unlabeled``) to files or splits;
            further files of a part are ``train-N`` and ``unlabeled-N``.
        pair: whether a row has two texts.
        metric: the name of the metric that decides.
        submission: ``competition``, ``glue`` or ``csv``.
        kind_name: what its labels are; by default numbers or classes, as the metric asks.
        report, own_metric, orders: as of ``Task``; a file of its own metric is the user's.
        extra_train: further training files.
        cleaning: steps applied to the rows after reading.
        group: the text, ``text`` or ``text_b``, that rows of one group share; None where the layout reads the groups,
            if there are any.
        weight: of its score in the study's.
        order: of its classes, from low to high, where the study file gives it.
        generation: as of ``Task``.
        encoding: of text files that are not UTF-8; None where all are.
        max_rows: most rows of every part; None for all.
        max_train_samples, max_eval_samples: most rows of ``train``, and validation rows; None for all.
        report_sets: by name, further files of questions, and the layouts that read them.
        plain_files: whether the sources are files; otherwise they are splits of a data set.
    """

    name: str
    layout: Layout
    extra_layout: Layout
    sources: Mapping[str, str]
    pair: bool
    metric: str
    submission: str
    kind_name: KindName | None = None
    report: tuple[str, ...] = ()
    own_metric: OwnMetric | None = None
    extra_train: tuple[ExtraRows, ...] = ()
    cleaning: Cleaning = field(default_factory=Cleaning)
    plain_files: bool = True
    group: str | None = None
    weight: float = 1.0
    order: tuple[str, ...] = ()
    generation: Generation | None = None
    report_sets: Mapping[str, tuple[str, Layout]] = field(default_factory=dict)
    encoding: str | None = None
    max_rows: int | None = None
    max_train_samples: int | None = None
    max_eval_samples: int | None = None
    orders: bool = False

    @property
    def kind(self) -> Kind:
        """What its labels and predictions are."""
        return KINDS[self.kind_name or kind_of({"metric": self.metric})]

    @property
    def unit(self) -> str:
        """What has a tag; empty where rows have labels as a whole."""
        return self.layout.unit if isinstance(self.layout, Tagged) else "text" if self.kind.comparative else ""

    @property
    def training_suffix(self) -> str:
        """The suffix of a training file written by ``layout``: that of ``train``, unpacked.

        JSON Lines for data sets, and for tables that are read but not written.
        """
        if self.kind.generative or self.kind.sequential:
            return ".jsonl"
        suffix = _suffix(self.sources["train"]) if self.plain_files else ".jsonl"
        return ".jsonl" if isinstance(self.layout, Table) and suffix.lower() not in SUFFIXES else suffix


def task_specs(
    tasks: Mapping[str, TaskConfig],
    sample_ids: Mapping[str, tuple[str, ...]] | None = None,
    split: Split | None = None,
    weights: Mapping[str, float] | None = None,
) -> list[TaskSpec]:
    """The specifications of all tasks, in the order of the study file.

    Args:
        sample_ids: by task, the names that its sample submissions give to the ids.
        split: names columns of groups and folds to read; by default none.
        weights: of the tasks' scores in the study's, by task; by default 1.
    """
    specs = [task_spec(name, config, (sample_ids or {}).get(name, ()), split) for name, config in tasks.items()]
    return [replace(spec, weight=(weights or {}).get(spec.name, 1.0)) for spec in specs]


def task_spec(name: str, config: TaskConfig, sample_ids: tuple[str, ...] = (), split: Split | None = None) -> TaskSpec:
    """The specification of one task of a study file that was loaded, and so has the keys that its layout needs."""
    group = split.group_of(name) if split else None
    table = _table(
        config,
        sample_ids=sample_ids,
        group=None if group in TEXTS else group,
        fold=split.fold_column if split else None,
    )
    given = [*config.files().values(), *(str(extra.path) for extra in config.extra_train)]
    given += [str(config.sample)] if config.sample else []
    declare_encoding(given, config.encoding)
    layout, extra_layout, pair = _layouts(name, config, table)
    kind = KINDS[config.kind]
    soft = SoftLabels(pair, kind.exclusive, kind.exchangeable)
    return TaskSpec(
        name=name,
        layout=layout,
        extra_layout=extra_layout,
        sources=config.files(),
        pair=pair and not config.orders,
        orders=config.orders,
        kind_name=config.kind,
        metric=config.metric_name,
        report=config.report,
        own_metric=None if isinstance(config.metric, str) else config.metric,
        submission=submission_of(config),
        extra_train=tuple(
            ExtraRows(extra.path, extra.weight, soft if extra.labels == "soft" else extra_layout, extra.fold)
            for extra in config.extra_train
        ),
        cleaning=config.cleaning,
        plain_files=config.dataset is None,
        group=group if group in TEXTS else None,
        order=config.ordered if isinstance(config.ordered, tuple) else (),
        generation=_generation(config) if KINDS[config.kind].generative else None,
        encoding=config.encoding,
        max_rows=config.max_rows,
        max_train_samples=config.max_train_samples,
        max_eval_samples=config.max_eval_samples,
        report_sets={
            name: (each.file, Instructions(each.format, group=each.by)) for name, each in config.report_sets.items()
        },
    )


def _generation(config: TaskConfig) -> Generation:
    """How the texts of a task are written: at each evaluation where one of its metrics is of texts."""
    needs = {FACTS[name].needs for name in config.report}
    needs.add(config.metric.needs if isinstance(config.metric, OwnMetric) else FACTS[config.metric].needs)
    at_evaluations = "texts" in needs if config.generate is None else config.generate
    sets = config.report_sets
    return Generation(
        config.generation,
        at_evaluations=at_evaluations,
        chat=config.format == "chat",
        report_sets={name: "evaluations" if each.decides else each.when for name, each in sets.items()},
        decided_by=next((name for name, each in sets.items() if each.decides), None),
    )


def _table(config: TaskConfig, *, sample_ids: tuple[str, ...], group: str | None, fold: str | None) -> Table:
    columns = config.columns
    texts: dict[str, Any] = {"text": columns.text, "text_b": columns.text_b, "single": None}
    texts |= {"template": config.template, "template_b": config.template_b}
    if config.orders and config.template and columns.text_b:
        texts["template_b"] = exchanged(config.template, columns.text, columns.text_b)
    if columns.better and columns.worse:
        texts |= {"text": columns.better, "text_b": columns.worse, "single": columns.text}
        if columns.prompt:
            start = f"{{{columns.prompt}}} [SEP] "
            texts |= {"template": f"{start}{{{columns.better}}}", "template_b": f"{start}{{{columns.worse}}}"}
    return Table(
        id=columns.id,
        **texts,
        label=columns.label_column,
        labels=columns.columns_of_labels,
        one_hot=isinstance(columns.label, tuple),
        several=isinstance(columns.labels, str) or columns.separator is not None,
        separator=columns.separator,
        choices=columns.columns_of_choices,
        answers=columns.answers,
        weight=config.row_weight,
        sample_ids=sample_ids,
        group=group,
        fold=fold,
    )


def _layouts(name: str, config: TaskConfig, table: Table) -> tuple[Layout, Layout, bool]:
    """The layout, the layout of ``extra_train``, which has no groups and folds, and whether rows are pairs."""
    plain = replace(table, group=None, fold=None, weight=None)
    pair = "text_b" in table.names(labelled=False) and table.single is None
    match config.layout:
        case "competition":
            competition = Competition(config.pair, config.cleaning.broken_rows, config.columns.separator)
            return competition, competition, config.pair
        case "glue":
            glue = Glue(config.glue or GLUE_NAMES[name.lower()], repair=config.cleaning.broken_rows)
            return glue, glue, glue.pair
        case "table":
            return table, plain, pair
        case "instructions":
            columns = config.columns
            instructions = Instructions(
                config.format,
                config.dataset,
                config.subset,
                text=columns.text,
                label=columns.label_column,
                id=columns.id,
                sample_ids=table.sample_ids,
            )
            return instructions, replace(instructions, dataset=None), False
        case "tokens":
            tagged = _tagged(config)
            return tagged, replace(tagged, dataset=None), tagged.text_b is not None
        case "hub":
            assert config.dataset is not None
            return Hub(config.dataset, config.subset, table), plain, pair


def _tagged(config: TaskConfig) -> Tagged:
    defaults, columns = Columns(), config.columns
    text = columns.text if columns.text != defaults.text else None
    label = columns.label_column if columns.label != defaults.label else None
    unit = config.unit or ("word" if config.dataset is not None else natural_unit(config.files()["train"], text))
    marks = {"marks": config.spans != "none", "overlapping": config.spans == "overlapping"}
    return Tagged(unit, text, label, columns.text_b, columns.id, config.dataset, config.subset, **marks)


def numbering_note(layout: Layout, source: str) -> str | None:
    """Says in one line that rows to predict are numbered, and why; None where they have ids of their own.

    Raises:
        TaskFileError: where the file cannot be read.
    """
    match layout:
        case Table(id=None):
            columns, where = layout.id_columns(source), Path(source).name
        case Hub(columns=Table(id=None)):
            columns, where = [], f"the split {source}"
        case _:
            return None
    if len(columns) == 1:
        return None
    why = f"{' and '.join(columns)} could all be their ids" if columns else "no column is known to hold their ids"
    return f"the rows of {where} are numbered from 0, as {why}; `columns: {{id: NAME}}` names one"


def ids_by(column: str, spec: TaskSpec, source: str) -> list[str] | None:
    """The ids that rows to predict have by a column; None where the source has no such ids, or is not there."""
    layout: Layout
    match spec.layout:
        case Table():
            layout = replace(spec.layout, id=column)
        case Hub():
            layout = replace(spec.layout, columns=replace(spec.layout.columns, id=column))
        case _:
            return None
    try:
        return list(layout.read(source, labelled=False)["id"])
    except TaskFileError:
        return None


def new_rows_layout(spec: TaskSpec, file: Path) -> FileLayout:
    """The layout of a file with new rows to predict.

    A task that names its columns has them here too. For others, a file with the suffix of the task's own has its
    layout, unless its first line is a header with the column text; such a file, and any other, is a table with the
    columns text and, for pairs, text_b. Ids are optional, but must then be in every row.

    Raises:
        TaskFileError: where the file cannot be read.
    """
    if spec.encoding:
        declare_encoding([str(file)], spec.encoding)
    match spec.layout:
        case Table():
            return spec.layout.with_ids(str(file))
        case Hub():
            return spec.layout.columns.with_ids(str(file))
        case Instructions() | Tagged():
            return replace(spec.layout, dataset=None)
        case Competition() | Glue():
            suffixes = {_suffix(source) for source in spec.sources.values()}
            if _suffix(str(file)) in suffixes and not _has_header(file):
                return spec.layout
    return Table(text_b="text_b" if spec.pair else None).with_ids(str(file))


def _suffix(source: str) -> str:
    return Path(unpacked_name(source)).suffix


def _has_header(file: Path) -> bool:
    line = next(lines_of(str(file)), "")  # without tabs it is no row of the layout, so commas may separate names
    return "text" in (cell.strip('"') for cell in line.split("\t" if "\t" in line else ","))
