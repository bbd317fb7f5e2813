"""Enqueued points and grids."""

from __future__ import annotations

import optuna
import pytest

from tutti.config.space import SearchSpace
from tutti.records import TrialState

POINTS = (
    {"learning_rate": 3e-5, "dropout": 0, "epochs": 3, "pooling": "mean"},
    {"pooling": None},
)


def test_enqueued_points_are_the_first_trials_in_order_and_the_rest_of_them_is_drawn(opened, space):
    store = opened(enqueued=POINTS)
    first, second, third = store.ask(), store.ask(), store.ask()
    assert (first.key, dict(first.parameters)) == ("t0000", POINTS[0])
    assert isinstance(first.parameters["dropout"], float)
    assert (second.key, second.parameters["pooling"]) == ("t0001", None)
    assert second.parameters.keys() == space.root.keys()
    assert third.key == "t0002"


def test_points_that_wait_are_no_trials_yet(opened):
    store = opened(enqueued=POINTS)
    assert (store.records(), store.unfinished()) == ([], [])
    key = store.ask().key
    assert [record.key for record in store.records()] == [key]
    assert [proposal.key for proposal in store.unfinished()] == [key]


def test_a_resumed_study_gets_what_still_waits_and_nothing_again(opened):
    store = opened(enqueued=POINTS)
    store.finish(store.ask().key, state=TrialState.FINISHED, score=0.5)
    assert opened(enqueued=POINTS).ask().parameters["pooling"] is None
    third = opened(enqueued=POINTS).ask()
    assert third.key == "t0002"
    assert third.parameters["learning_rate"] != POINTS[0]["learning_rate"]


@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_a_point_whose_driver_died_while_asking_stays_that_trial_and_does_not_come_again(opened, url, sampler):
    space = SearchSpace.model_validate({"epochs": {"type": "int", "low": 1, "high": 4}})
    enqueued = [{"epochs": 3}, {"epochs": 2}]
    opened(space=space, sampler=sampler, enqueued=enqueued)
    optuna.load_study(storage=url, study_name="s").ask()  # like a driver that dies while asking
    store = opened(space=space, sampler=sampler, enqueued=enqueued)
    assert [(left.key, left.parameters) for left in store.unfinished()] == [("t0000", {"epochs": 3})]
    assert [(next_.key, next_.parameters["epochs"] == 2) for next_ in (store.ask(), store.ask())] == [
        ("t0001", True),
        ("t0002", False),
    ]


def test_a_conditional_key_is_drawn_where_an_enqueued_point_asks_for_it(opened):
    space = SearchSpace.model_validate(
        {
            "adapter": {"type": "categorical", "choices": [None, "lora"]},
            "lora_r": {"type": "int", "low": 1, "high": 64, "when": {"adapter": ["lora"]}},
        }
    )
    store = opened(space=space, enqueued=[{"adapter": "lora", "lora_r": 8}, {"adapter": "lora"}, {"adapter": None}])
    points = [dict(store.ask().parameters) for _ in range(3)]
    assert points[0] == {"adapter": "lora", "lora_r": 8}
    assert points[1].keys() == {"adapter", "lora_r"}
    assert points[2] == {"adapter": None}


def test_a_condition_may_ask_for_what_the_study_sets_for_all_trials(opened, url):
    space = SearchSpace.model_validate({"lora_r": {"type": "int", "low": 1, "high": 64, "when": {"adapter": "lora"}}})
    assert opened(space=space, fixed={"adapter": "lora"}).ask().parameters.keys() == {"lora_r"}
    assert opened(space=space, fixed={"adapter": None}).ask().parameters == {}
    assert opened(space=space).ask().parameters == {}


@pytest.mark.parametrize("point", [{"epochs": 2}, {"epochs": 2, "pooling": "cls"}])
def test_a_grid_counts_enqueued_points_in(opened, point):
    space = SearchSpace.model_validate(
        {
            "epochs": {"type": "int", "low": 1, "high": 3},
            "pooling": {"type": "categorical", "choices": ["cls", "mean"]},
        }
    )
    store = opened(space=space, sampler="grid", enqueued=[point])
    points = [dict(store.ask().parameters) for _ in range(6)]
    assert point.items() <= points[0].items()
    assert len({str(sorted(point.items())) for point in points}) == 6


@pytest.mark.parametrize("resumed", [False, True])
def test_partial_points_that_fit_the_same_point_of_a_grid_become_different_ones(opened, resumed):
    space = SearchSpace.model_validate(
        {
            "epochs": {"type": "int", "low": 1, "high": 2},
            "pooling": {"type": "categorical", "choices": ["cls", "mean"]},
        }
    )
    enqueued = [{"epochs": 1}, {"pooling": "cls"}]
    for seed in range(4):  # each shuffles the grid
        options = {"name": f"s{seed}", "space": space, "sampler": "grid", "seed": seed}
        if resumed:  # after a driver that died while it enqueued
            opened(**options, enqueued=enqueued[:1])
        store = opened(**options, enqueued=enqueued)
        points = [dict(store.ask().parameters) for _ in range(4)]
        assert all(point.items() <= chosen.items() for point, chosen in zip(enqueued, points, strict=False))
        assert len({str(point) for point in points}) == 4
