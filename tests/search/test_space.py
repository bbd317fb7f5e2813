"""Every distribution of a search-space file is converted to Optuna's."""

from __future__ import annotations

import warnings

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.config.space import SearchSpace
from tutti.search.space import distributions


def _one(**given_):
    return distributions(SearchSpace.model_validate({"x": given_}))["x"]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"type": "uniform", "low": 0, "high": 1}, optuna.distributions.FloatDistribution(0, 1)),
        (
            {"type": "uniform", "low": 0, "high": 0.3, "step": 0.1},
            optuna.distributions.FloatDistribution(0, 0.3, step=0.1),
        ),
        (
            {"type": "log_uniform", "low": 1e-5, "high": 1e-3},
            optuna.distributions.FloatDistribution(1e-5, 1e-3, log=True),
        ),
        ({"type": "int", "low": 1, "high": 9, "step": 2}, optuna.distributions.IntDistribution(1, 9, step=2)),
        (
            {"type": "int", "low": 1, "high": 64, "log": True},
            optuna.distributions.IntDistribution(1, 64, log=True),
        ),
        (
            {"type": "categorical", "choices": ["cls", 2, 0.5, True, None]},
            optuna.distributions.CategoricalDistribution(("cls", 2, 0.5, True, None)),
        ),
    ],
)
def test_each_kind_becomes_optunas_own(given_, expected):
    assert _one(**given_) == expected


def test_the_order_of_the_file_is_kept():
    uniform = {"type": "uniform", "low": 0, "high": 1}
    assert list(distributions(SearchSpace.model_validate(dict.fromkeys("zay", uniform)))) == ["z", "a", "y"]


def test_an_empty_space_gives_no_distributions():
    assert distributions(SearchSpace()) == {}


@settings(max_examples=50, deadline=None)
@given(st.integers(-50, 50), st.integers(1, 40), st.integers(1, 50))
def test_a_range_that_its_step_does_not_divide_ends_at_its_last_step_without_a_warning(low, width, step):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = _one(type="int", low=low, high=low + width, step=step)
        tenths = _one(type="uniform", low=low / 10, high=(low + width) / 10, step=step / 10)
    assert whole.high == max(value for value in range(low, low + width + 1, step))
    assert tenths.high == whole.high / 10
