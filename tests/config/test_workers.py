from __future__ import annotations

from typing import Any

import pytest

from tutti.config.workers import worker_faults


def _places(**raw: Any) -> list[str]:
    return [fault.what for fault in worker_faults(raw, what=lambda key: key)]


@pytest.mark.parametrize("training", [{}, {"fsdp": False}, {"fsdp": None}])
def test_one_worker_is_enough_where_weights_stay_whole(training: dict[str, Any]) -> None:
    assert _places(training=training) == []


def test_sharded_weights_need_two_workers() -> None:
    assert _places(training={"fsdp": True}) == ["resources.workers"]
    assert _places(training={"fsdp": True}, resources={"workers": 1}) == ["resources.workers"]
    assert _places(training={"fsdp": True}, resources={"workers": 2}) == []


def test_a_search_space_does_not_vary_how_weights_are_held() -> None:
    assert _places(search_space={"fsdp": {"type": "categorical", "choices": [None, True]}}) == ["search_space.fsdp"]
