"""Keys that say nothing beside ``split.folds``: a fault where they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tutti.config.yaml_file import show
from tutti.errors import Fault


def fold_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each key that holds out other rows than the folds do.

    Read from the raw mapping, so that they are told together with faults of other kinds.
    """
    split, tasks = raw.get("split"), raw.get("tasks")
    if not isinstance(split, dict) or split.get("folds") is None:
        return []
    given = {"split.validation": split.get("validation")}
    for name, task in tasks.items() if isinstance(tasks, dict) else ():
        if isinstance(task, dict):
            given[f"tasks.{name}.validation"] = task.get("validation")
    return [
        Fault(
            what(key),
            "be left out with split.folds, by which every training row validates once",
            show(value),
            "take it out, or take split.folds out",
        )
        for key, value in given.items()
        if value is not None
    ]
