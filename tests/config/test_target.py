from __future__ import annotations

from typing import Any

import pytest

from tutti.config.target import target_faults


def _faults(target: Any, *metrics: str) -> list[str]:
    tasks = {f"t{index}": {"metric": metric} for index, metric in enumerate(metrics)}
    raw = {"search": {"target_score": target}, "tasks": tasks}
    return [str(fault) for fault in target_faults(raw, what=lambda key: key)]


@pytest.mark.parametrize(
    ("target", "metrics"),
    [
        (0.85, ["macro_f1"]),
        (1, ["matthews", "f1"]),
        (-0.2, ["neg_mse"]),
        (0.5, ["neg_mse", "accuracy"]),
        (None, ["f1"]),
    ],
)
def test_a_target_that_can_be_reached_is_sound(target: Any, metrics: list[str]) -> None:
    assert _faults(target, *metrics) == []


def test_a_target_in_per_cent_is_told_as_the_share_that_it_is() -> None:
    assert _faults(85, "macro_f1") == [
        "search.target_score must be at most 1, the best that macro_f1 can be; got 85; write 0.85 for 85 %."
    ]


def test_of_errors_the_best_is_zero_and_of_several_tasks_the_mean_counts() -> None:
    assert "at most 0, the best that neg_mse can be; got 0.1; lower it" in _faults(0.1, "neg_mse")[0]
    assert "at most 0.5, the best that the mean of neg_mse, f1 can be; got 0.6" in _faults(0.6, "neg_mse", "f1")[0]
