"""A study's store is asked for trials."""

from __future__ import annotations

import pytest
from optuna.samplers import TPESampler

from tutti.config.space import SearchSpace
from tutti.search.samplers import STARTUP_TRIALS


@pytest.fixture
def url(each_database) -> str:
    return each_database


def test_an_empty_space_gives_different_trials_with_no_parameters(opened):
    store = opened(space=SearchSpace())
    assert [(p.key, p.parameters) for p in (store.ask(), store.ask())] == [("t0000", {}), ("t0001", {})]


def test_trials_asked_for_at_the_same_time_differ_once_tpe_is_at_work(opened, run_trials):
    store = opened()
    run_trials(store, STARTUP_TRIALS + 1)
    rates = [store.ask().parameters["learning_rate"] for _ in range(4)]
    assert len(set(rates)) == 4


def test_a_mistake_of_a_sampler_is_no_fault_of_the_database(opened, monkeypatch):
    store = opened()

    def wrong(*args):
        raise RuntimeError("a mistake")

    monkeypatch.setattr(TPESampler, "sample_relative", wrong)
    with pytest.raises(RuntimeError, match="a mistake"):
        store.ask()
