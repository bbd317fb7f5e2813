"""The objectives of a study, and the Pareto front of its finished trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from tutti.config.study import Objective
from tutti.records import TrialRecord, TrialState

DIRECTIONS: Mapping[Objective, Literal["maximize", "minimize"]] = {
    "score": "maximize",
    "gain": "maximize",
    "seconds": "minimize",
    "parameters": "minimize",
    "disk": "minimize",
}


def objective_values(
    objectives: Sequence[Objective], measured: Mapping[str, float | None]
) -> tuple[dict[str, float], str | None]:
    """The score and the values of the objectives by name, and why the trial fails where one of them is not finite."""
    values: dict[str, float] = {}
    for name in ("score", *objectives):
        value = measured.get(name)
        if value is None or not math.isfinite(value):
            return values, f"it ended with the {name} {value}, not a finite number"
        values[name] = float(value)
    return values, None


def pareto_front(records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[str]:
    """Keys of the non-dominated finished trials: no other is as good in every objective and better in one."""
    losses = {
        record.key: tuple(
            -record.measured[name] if DIRECTIONS[name] == "maximize" else record.measured[name] for name in objectives
        )
        for record in records
        if record.state is TrialState.FINISHED and record.measured
    }
    return [key for key, own in losses.items() if not any(_dominates(rival, own) for rival in losses.values())]


def _dominates(left: tuple[float, ...], right: tuple[float, ...]) -> bool:
    """Whether the left losses are at most the right ones everywhere, and below them somewhere."""
    return left != right and all(first <= second for first, second in zip(left, right, strict=True))
