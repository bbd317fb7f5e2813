"""A study on disk, and a search space with one parameter of each distribution."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tutti.config.space import SearchSpace
from tutti.records import TrialState
from tutti.search.study_store import StudyStore


@pytest.fixture(scope="session")
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


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def each_database(request, tmp_path) -> str:
    """An empty database of each kind, for tests that the two kinds must pass alike."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'optuna.db'}"
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def opened(url, space, tmp_path, empty_database):
    """Opens the study with changed arguments, after closing its earlier driver; closes all stores at the end."""
    stores, file = {}, tmp_path / "optuna.db"

    def open_(**changes) -> StudyStore:
        arguments = {"url": url, "name": "s", "space": space, "sampler": "tpe", "seed": 3} | changes
        if arguments["url"] == f"sqlite:///{file}" and not file.exists():
            shutil.copy(empty_database, file)
        if earlier := stores.get((arguments["url"], arguments["name"])):
            earlier.close()
        stores[arguments["url"], arguments["name"]] = store = StudyStore.open(**arguments)
        return store

    yield open_
    for store in stores.values():
        store.close()


@pytest.fixture
def run_trials() -> Callable[..., list[dict]]:
    """Runs some trials, all asked for before the first one is finished, and returns their parameters."""

    def run(store, trials, *, score=lambda parameters: parameters.get("dropout", 0.0)):
        proposals = [store.ask() for _ in range(trials)]
        for proposal in proposals:
            store.report(proposal.key, epoch=1, score=score(proposal.parameters), task_scores={})
            store.finish(proposal.key, state=TrialState.FINISHED)
        return [dict(proposal.parameters) for proposal in proposals]

    return run
