"""Access to a raw study file, whose values may have any type before they are validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tutti.config.metric_facts import default_metric, kind_of
from tutti.config.template import columns_of


def section(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under a key; empty where it is missing or is no mapping, which the validation of types reports."""
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def entries(raw: Mapping[str, Any], key: str) -> list[Any]:
    """The list under a key; empty where it is missing or is no list."""
    value = raw.get(key)
    return list(value) if isinstance(value, list | tuple) else []


def tasks_of(raw: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The tasks by name, without those that are no mappings."""
    return {name: task for name, task in section(raw, "tasks").items() if isinstance(task, dict)}


def metric_of(task: Mapping[str, Any]) -> Any:
    """The metric of a task, the default where it names none. Its value may be of any type."""
    return task.get("metric", default_metric(task))


def in_one_text(task: Mapping[str, Any]) -> bool:
    """Whether a task has pairs whose two texts stand in one template, which can be filled with them in both orders."""
    columns, template = section(task, "columns"), task.get("template")
    names = {columns.get("text", "text"), columns.get("text_b")}
    if not isinstance(template, str) or task.get("template_b") or len(names) < 2 or kind_of(task) == "choice":
        return False
    try:
        return names <= {*columns_of(template)}
    except ValueError:  # which the template's own check reports
        return False


def objective_weights_of(raw: Mapping[str, Any]) -> dict[str, float]:
    """The weight of each task in the study's score; empty where one is not a number from 0 up."""
    named = section(raw, "objective_weights")
    weights = {name: named.get(name, 1.0) for name in tasks_of(raw)}
    sound = all(type(each) in (int, float) and 0 <= each < float("inf") for each in weights.values())
    return weights if sound else {}
