"""A target score that no trial can reach, such as 85 where scores are shares of 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tutti.errors import Fault


def target_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where ``search.target_score`` is above the best that the mean of the tasks' metrics can be."""
    search, tasks = raw.get("search"), raw.get("tasks")
    target = search.get("target_score") if isinstance(search, dict) else None
    metrics = (
        [task.get("metric", "macro_f1") for task in tasks.values() if isinstance(task, dict)]
        if isinstance(tasks, dict)
        else []
    )
    if isinstance(target, bool) or not isinstance(target, int | float) or not metrics:
        return []
    best = sum(metric != "neg_mse" for metric in metrics) / len(metrics)  # 0 of a negated error, 1 of all others
    if target <= best:
        return []
    rule = f"be at most {best:g}, the best that {'the mean of ' if len(metrics) > 1 else ''}{', '.join(metrics)} can be"
    share = f"write {target / 100:g} for {target:g} %" if 1 < target <= 100 * best else "lower it"
    return [Fault(what("search.target_score"), rule, f"{target:g}", share)]
