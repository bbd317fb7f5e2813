"""Checks the keys of a task that belong to certain layouts: unused where another layout is set, or missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from tutti.config.columns import Columns
from tutti.config.metric_facts import kind_of, kinds_of, needs_texts
from tutti.config.raw import entries, in_one_text, metric_of, section, tasks_of
from tutti.config.study import INSTRUCTION_COLUMNS, GlueKind, LayoutName, TaskConfig
from tutti.config.yaml_file import show
from tutti.errors import Fault

# Task names that imply a GLUE layout.
GLUE_NAMES: dict[str, GlueKind] = {
    written: kind for kind in get_args(GlueKind) for written in (kind.lower(), kind.lower().replace("-", ""))
}
_UNTAGGED: tuple[LayoutName, ...] = ("competition", "glue", "table", "hub", "instructions")  # else words would change
_ONLY: dict[str, tuple[LayoutName, ...]] = {
    "pair": ("competition",),
    "cleaning.broken_rows": ("competition", "glue"),
    "cleaning.repeated_punctuation": ("competition", "glue", "table", "hub"),  # "### Response" and quotes of JSON
    "columns": ("table", "hub", "instructions", "tokens"),
    "format": ("instructions",),
    "generation": ("instructions",),
    "generate": ("instructions",),
    "report_sets": ("instructions",),
    "row_weight": ("table", "hub"),
    "columns.label": ("table", "hub"),
    "template": ("table", "hub"),
    "template_b": ("table", "hub"),
    "glue": ("glue",),
    "dataset": ("hub", "instructions", "tokens"),
    "subset": ("hub", "instructions", "tokens"),
    "unit": ("tokens",),
    "spans": ("tokens",),
    "cleaning.emoji": _UNTAGGED,
    "cleaning.emoticons": _UNTAGGED,
    "cleaning.brackets": _UNTAGGED,
}


def layout_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each key that a task's layout does not use, and for each that it lacks.

    It reads the raw mapping, so that these faults are reported together with others. A key with its default value
    counts as absent, because a study file written by Tutti has all keys.
    """
    return [
        fault
        for name, task in tasks_of(raw).items()
        if task.get("layout") in get_args(LayoutName)
        for fault in [
            *_unused_keys(name, task, what),
            *_missing_keys(name, task, what),
            *_texts_twice(name, task, what),
            *_soft_values(name, task, what),
            *_other_prompts(name, task, what),
            *_texts_faults(name, task, what),
        ]
    ]


def _unused_keys(name: str, task: Mapping[str, Any], what: Callable[[str], str]) -> list[Fault]:
    layout, label = task["layout"], section(task, "columns").get("label")
    values = {**task, **{f"cleaning.{step}": on for step, on in section(task, "cleaning").items()}}
    values["columns.label"] = label if isinstance(label, list | tuple) else None
    return [
        Fault(
            what(f"tasks.{name}.{key}"),
            f"be used with the layout {' or '.join(layouts)} only",
            f"{show(values[key])} with the layout {layout}",
            "take it out, or correct the layout",
        )
        for key, layouts in _ONLY.items()
        if values.get(key)
        and values[key] != Columns().model_dump()
        and not (key == "format" and values[key] == TaskConfig.model_fields["format"].default)
        and layout not in layouts
        and not (key == "columns" and layout == "competition" and _only_separator(values[key]))
    ]


def _only_separator(columns: Any) -> bool:
    """Whether columns say no more than what stands between several labels of a row, which needs no header."""
    defaults = Columns().model_dump()
    return isinstance(columns, dict) and all(
        key == "separator" or value == defaults.get(key) for key, value in columns.items()
    )


def _texts_twice(name: str, task: Mapping[str, Any], what: Callable[[str], str]) -> list[Fault]:
    """A fault for each text that a template and a column would both be."""
    columns, defaults = section(task, "columns"), Columns()
    return [
        Fault(
            what(f"tasks.{name}.columns.{text}"),
            f"be left out beside `{template}`, which says what the text is",
            show(columns[text]),
            f"take it out, or name {{{columns[text]}}} in the template",
        )
        for text, template in (("text", "template"), ("text_b", "template_b"))
        if task.get(template)
        and not in_one_text(task)
        and columns.get(text, getattr(defaults, text)) not in (None, getattr(defaults, text))
    ]


def _soft_values(name: str, task: Mapping[str, Any], what: Callable[[str], str]) -> list[Fault]:
    rule = "be hard in a task whose labels are numbers, texts, tags or pairs"
    return [
        Fault(what(f"tasks.{name}.extra_train.{index}.labels"), rule, "soft", "take it out")
        for index, entry in enumerate(entries(task, "extra_train"))
        if isinstance(entry, dict)
        and entry.get("labels") == "soft"
        and kind_of(task) in ("value", "values", "preference", "text", "tokens", "span", "tags")
    ]


def _texts_faults(name: str, task: Mapping[str, Any], what: Callable[[str], str]) -> Iterator[Fault]:
    """The faults of a task of texts: columns that its format lacks, and a metric of texts that are not written."""
    if task["layout"] != "instructions":
        return
    form = task.get("format", TaskConfig.model_fields["format"].default)
    defaults = {**Columns().model_dump(), **INSTRUCTION_COLUMNS}
    used = ("id", "text", "label") if form == "input-output" else ("id",)
    for key, column in section(task, "columns").items():
        if key in defaults and key not in used and column != defaults[key]:
            rule, remedy = f"be left out with the format {form}, which names its columns", "take it out"
            yield Fault(what(f"tasks.{name}.columns.{key}"), rule, show(column), remedy)
    if isinstance(sets := task.get("validation"), dict) and len(sets) > 1:
        rule, remedy = "be one file with the layout instructions", "name others as `report_sets:`"
        yield Fault(what(f"tasks.{name}.validation"), rule, f"{len(sets)}", remedy)
    if task.get("generate") is False and needs_texts(metric := metric_of(task)):
        rule, remedy = f"be true, or be left out, where the metric is of texts, as {show(metric)}", "take it out"
        yield Fault(what(f"tasks.{name}.generate"), rule, "false", remedy)


def _other_prompts(name: str, task: Mapping[str, Any], what: Callable[[str], str]) -> list[Fault]:
    """A fault for each set of questions whose prompts are chats where the task's are none, or the other way round."""
    chat = task.get("format") == "chat"
    rule = f"{'be' if chat else 'not be'} chat as the task's format is{'' if chat else ' none'}"
    remedy = "write the questions as the task's rows are written"
    return [
        Fault(
            what(f"tasks.{name}.report_sets.{entry}.format"), rule, show(values.get("format", "input-output")), remedy
        )
        for entry, values in section(task, "report_sets").items()
        if isinstance(values, dict) and (values.get("format") == "chat") != chat
    ]


def _missing_keys(name: str, task: Mapping[str, Any], what: Callable[[str], str]) -> list[Fault]:
    if task["layout"] == "glue" and not task.get("glue") and name.lower() not in GLUE_NAMES:
        *most, last = get_args(GlueKind)
        rule, got = "say which layout of GLUE the task has where its name does not", f"none, and the name {name!r}"
        return [Fault(what(f"tasks.{name}.glue"), rule, got, f"set `glue:` to {', '.join(most)} or {last}")]
    if task["layout"] == "hub" and not task.get("dataset"):
        rule, remedy = "name the data set of the layout hub", "set `dataset:` to a hub id or a folder"
        return [Fault(what(f"tasks.{name}.dataset"), rule, "none", remedy)]
    metric = metric_of(task)
    kind = task.get("glue") or GLUE_NAMES.get(name.lower())
    if task["layout"] == "glue" and kind == "STS-B" and not set(kinds_of(metric)) & {"value"}:
        rule, got = "be a metric of values, as the scores of STS-B are", show(metric)
        remedy = "set `metric:` to pearson_spearman, as GLUE has it, or to pearson, spearman or neg_mse"
        return [Fault(what(f"tasks.{name}.metric"), rule, got, remedy)]
    return []
