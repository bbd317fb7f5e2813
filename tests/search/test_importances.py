"""How much each parameter of a study matters."""

from __future__ import annotations

import optuna
import pytest

from tutti.search.importances import importances


def stored(tmp_path, *, trials: int, directions=("maximize",), varied: bool = True, scored: bool = True) -> str:
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=url, study_name="s", directions=directions, sampler=optuna.samplers.RandomSampler(seed=0)
    )

    def objective(trial):
        rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True) if varied else 1.0
        pooling = trial.suggest_categorical("pooling", ["cls", "mean"]) if varied else "cls"
        values = (rate * 10 + (pooling == "mean") if scored else 0.5, -rate)
        return values[: len(directions)]

    study.optimize(objective, n_trials=trials)
    return url


@pytest.mark.parametrize("directions", [("maximize",), ("maximize", "minimize")])
def test_what_decides_the_first_objective_comes_first(tmp_path, directions):
    found = importances(stored(tmp_path, trials=40, directions=directions), name="s")
    assert [*found] == ["pooling", "learning_rate"]
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "changes", [{"trials": 0}, {"trials": 1}, {"trials": 3, "varied": False}, {"trials": 4, "scored": False}]
)
def test_trials_that_tell_nothing_have_no_importances(tmp_path, changes):
    assert importances(stored(tmp_path, **changes), name="s") == {}


def test_a_study_that_is_not_there_has_none_and_is_not_made(tmp_path):
    assert importances(f"sqlite:///{tmp_path / 'none.db'}", name="s") == {}
    assert not (tmp_path / "none.db").exists()
