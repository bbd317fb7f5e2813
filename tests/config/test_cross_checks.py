"""Checks across the sections of a study file."""

from __future__ import annotations

from typing import Any

import pytest

from tutti.config.cross_checks import target_faults, worker_faults


def _target_faults(target: Any, *metrics: str) -> list[str]:
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
    assert _target_faults(target, *metrics) == []


def test_a_target_in_per_cent_is_told_as_the_share_that_it_is() -> None:
    assert _target_faults(85, "macro_f1") == [
        "search.target_score must be at most 1, the best that macro_f1 can be; got 85; write 0.85 for 85 %."
    ]


def test_of_errors_the_best_is_zero_and_of_several_tasks_the_mean_counts() -> None:
    assert "at most 0, the best that neg_mse can be; got 0.1; lower it" in _target_faults(0.1, "neg_mse")[0]
    assert (
        "at most 0.5, the best that the mean of neg_mse, f1 can be; got 0.6" in _target_faults(0.6, "neg_mse", "f1")[0]
    )


def _worker_places(**raw: Any) -> list[str]:
    return [fault.what for fault in worker_faults(raw, what=lambda key: key)]


@pytest.mark.parametrize("training", [{}, {"fsdp": False}, {"fsdp": None}])
def test_one_worker_is_enough_where_weights_stay_whole(training: dict[str, Any]) -> None:
    assert _worker_places(training=training) == []


def test_sharded_weights_need_two_workers() -> None:
    assert _worker_places(training={"fsdp": True}) == ["resources.workers"]
    assert _worker_places(training={"fsdp": True}, resources={"workers": 1}) == ["resources.workers"]
    assert _worker_places(training={"fsdp": True}, resources={"workers": 2}) == []


def test_a_search_space_does_not_vary_how_weights_are_held() -> None:
    assert _worker_places(search_space={"fsdp": {"type": "categorical", "choices": [None, True]}}) == [
        "search_space.fsdp"
    ]
