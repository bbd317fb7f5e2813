"""What a study's finished trials are judged by, and which of them no other one is better than in all of it."""

from __future__ import annotations

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


def pareto_front(records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[str]:
    """Keys of the finished trials that none is better than: as good in every objective, and better in one."""
    losses = {
        record.key: tuple(
            -record.measured[name] if DIRECTIONS[name] == "maximize" else record.measured[name] for name in objectives
        )
        for record in records
        if record.state is TrialState.FINISHED and record.measured
    }
    return [key for key, own in losses.items() if not any(_dominates(other, own) for other in losses.values())]


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(left <= right for left, right in zip(one, other, strict=True))
