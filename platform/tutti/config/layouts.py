"""Keys of a task that belong to some layouts alone: a fault where they say nothing, and where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from tutti.config.study import ClassMetric, Columns, GlueKind, Layout, ValueMetric
from tutti.config.yaml_file import show
from tutti.errors import Fault

# task names that say their layout
GLUE_NAMES: dict[str, GlueKind] = {
    written: kind for kind in get_args(GlueKind) for written in (kind.lower(), kind.lower().replace("-", ""))
}
_ONLY: dict[str, tuple[Layout, ...]] = {
    "pair": ("competition",),
    "cleaning.broken_rows": ("competition",),
    "columns": ("table", "hub"),
    "glue": ("glue",),
    "dataset": ("hub",),
    "subset": ("hub",),
}


def layout_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each key that a task's layout does not look at, and for each that it lacks.

    Read from the raw mapping, so that they are told together with faults of other kinds. A key that has its default, as
    a study that Tutti wrote has them all, is as good as none.
    """
    tasks = raw.get("tasks")
    return [
        fault
        for name, task in (tasks.items() if isinstance(tasks, dict) else ())
        if isinstance(task, dict) and task.get("layout") in get_args(Layout)
        for fault in [*_idle(name, task, what), *_lacking(name, task, what), *_soft_values(name, task, what)]
    ]


def no_glue_kind(name: str, what: str) -> Fault:
    """Of a task whose name does not say its layout, and whose ``glue`` does not either."""
    *most, last = get_args(GlueKind)
    rule, got = "say which layout of GLUE the task has where its name does not", f"none, and the name {name!r}"
    return Fault(what, rule, got, f"set `glue:` to {', '.join(most)} or {last}")


def no_dataset(what: str) -> Fault:
    """Of a task of the layout hub without the data set's name."""
    return Fault(what, "name the data set of the layout hub", "none", "set `dataset:` to a hub id or a folder")


def _idle(name: str, task: Mapping[str, Any], what: Callable[[str], str]) -> list[Fault]:
    layout, cleaning = task["layout"], task.get("cleaning")
    given = {**task, "cleaning.broken_rows": cleaning.get("broken_rows") if isinstance(cleaning, dict) else None}
    return [
        Fault(
            what(f"tasks.{name}.{key}"),
            f"stand in a task of the layout {' or '.join(layouts)} only",
            f"{show(given[key])} with the layout {layout}",
            "take it out, or correct the layout",
        )
        for key, layouts in _ONLY.items()
        if given.get(key) and given[key] != Columns().model_dump() and layout not in layouts
    ]


def _soft_values(name: str, task: Mapping[str, Any], what: Callable[[str], str]) -> list[Fault]:
    extra = task.get("extra_train")
    return [
        Fault(
            what(f"tasks.{name}.extra_train.{index}.labels"),
            "be hard in a task whose labels are numbers: a mean of numbers is a label like any other",
            "soft",
            "take it out",
        )
        for index, entry in enumerate(extra if isinstance(extra, list | tuple) else ())
        if isinstance(entry, dict) and entry.get("labels") == "soft" and task.get("metric") in get_args(ValueMetric)
    ]


def _lacking(name: str, task: Mapping[str, Any], what: Callable[[str], str]) -> list[Fault]:
    if task["layout"] == "glue" and not task.get("glue") and name.lower() not in GLUE_NAMES:
        return [no_glue_kind(name, what(f"tasks.{name}.glue"))]
    if task["layout"] == "hub" and not task.get("dataset"):
        return [no_dataset(what(f"tasks.{name}.dataset"))]
    metric = task.get("metric", "macro_f1")
    kind = task.get("glue") or GLUE_NAMES.get(name.lower())
    if task["layout"] == "glue" and kind == "STS-B" and metric in get_args(ClassMetric):
        rule, got = "be a metric of values, as the scores of STS-B are", show(metric)
        remedy = "set `metric:` to pearson_spearman, as GLUE has it, or to pearson, spearman or neg_mse"
        return [Fault(what(f"tasks.{name}.metric"), rule, got, remedy)]
    return []
