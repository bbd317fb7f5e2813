"""A study on disk, and a search space with one parameter of each kind."""

from __future__ import annotations

import pytest

from tutti.config.space import SearchSpace


@pytest.fixture
def space() -> SearchSpace:
    return SearchSpace.model_validate(
        {
            "learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 1e-3},
            "dropout": {"type": "uniform", "low": 0.0, "high": 0.5},
            "epochs": {"type": "int", "low": 1, "high": 8},
            "pooling": {"type": "categorical", "choices": ["cls", "mean", None]},
        }
    )


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'optuna.db'}"
