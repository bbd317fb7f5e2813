"""The objectives of a study, and the Pareto front of its finished trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

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
    table = np.array([*losses.values()])
    return [key for key, own in zip(losses, table, strict=True) if not _is_dominated(own, table)]


def _is_dominated(losses: np.ndarray, table: np.ndarray) -> bool:
    """Whether a row of the table is at most ``losses`` everywhere, and below them somewhere."""
    return bool(((table <= losses).all(axis=1) & (table < losses).any(axis=1)).any())
