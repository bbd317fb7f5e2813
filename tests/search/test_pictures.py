"""Optuna's plots of a study, drawn without a screen."""

from __future__ import annotations

import optuna
import pytest
from matplotlib import pyplot, rcParams
from matplotlib.collections import LineCollection

from tutti.search import pictures
from tutti.search.checks import set_objectives
from tutti.search.pictures import HISTORY, IMPORTANCES, PARALLEL, PARETO, _visible, search_pngs

PNG = b"\x89PNG\r\n\x1a\n"


def stored(tmp_path, *, trials: int, directions=("maximize",), varied: bool = True, scored: bool = True) -> str:
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=url, study_name="s", directions=directions, sampler=optuna.samplers.RandomSampler(seed=0)
    )
    if len(directions) > 1:
        set_objectives(study, ["score", "seconds"])

    def objective(trial):
        rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True) if varied else 1.0
        pooling = trial.suggest_categorical("pooling", ["cls", "mean"]) if varied else "cls"
        values = (rate * 10 + (pooling == "mean") if scored else 0.5, -rate)
        return values[: len(directions)]

    study.optimize(objective, n_trials=trials)
    return url


def test_a_study_is_drawn_and_nothing_of_it_stays_with_matplotlib(tmp_path):
    before = dict(rcParams)
    drawn = search_pngs(stored(tmp_path, trials=6), name="s")
    assert list(drawn) == [HISTORY, IMPORTANCES, PARALLEL]
    assert all(png.startswith(PNG) and len(png) > 5000 for png in drawn.values())
    assert pyplot.get_fignums() == []
    after = {key: value for key, value in rcParams.items() if not key.startswith("backend")}
    assert after == {key: value for key, value in before.items() if not key.startswith("backend")}


@pytest.mark.parametrize("colours", ["Blues", "Blues_r"])
def test_the_line_of_no_trial_is_too_pale_for_a_white_page(colours):
    axes = pyplot.figure().subplots()
    axes.add_collection(LineCollection([[(0, 0), (1, 1)]], array=[0.5], cmap=colours))
    (lines,) = _visible(axes).collections
    drawn = lines.get_cmap()(range(lines.get_cmap().N))
    assert drawn[:, 0].max() < 0.7
    assert (drawn[0, 0] > drawn[-1, 0]) == (colours == "Blues")  # still from pale to dark, or from dark to pale
    pyplot.close()


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_every_coordinate_has_its_whole_name_in_the_order_of_optuna(tmp_path, monkeypatch):
    url, names = f"sqlite:///{tmp_path / 'optuna.db'}", ["warmup_ratio", "per_device_train_batch_size", "learning_rate"]
    study = optuna.create_study(storage=url, study_name="s")
    study.optimize(lambda trial: sum(trial.suggest_float(name, 0, 1) for name in names), n_trials=3)
    monkeypatch.setattr(pictures, "_png", lambda draw, size: draw())
    axes = [search_pngs(url, name="s")[PARALLEL], optuna.visualization.matplotlib.plot_parallel_coordinate(study)]
    own, optunas = ([label.get_text() for label in each.get_xticklabels()] for each in axes)
    assert own == ["score", *sorted(names)]
    assert all(name.startswith(cut.removesuffix("...")) for name, cut in zip(own[1:], optunas[1:], strict=True))
    pyplot.close("all")


def test_of_several_objectives_the_pareto_front_is_drawn_too(tmp_path):
    drawn = search_pngs(stored(tmp_path, trials=6, directions=("maximize", "minimize")), name="s")
    assert list(drawn) == [HISTORY, IMPORTANCES, PARALLEL, PARETO]


@pytest.mark.parametrize("trials", [0, 1])
def test_too_few_trials_give_no_picture(tmp_path, trials):
    assert search_pngs(stored(tmp_path, trials=trials), name="s") == {}


def test_a_study_that_varies_nothing_gives_its_history_alone(tmp_path):
    assert HISTORY in search_pngs(stored(tmp_path, trials=3, varied=False), name="s")


@pytest.mark.parametrize("directions", [("maximize",), ("maximize", "minimize")])
def test_of_equal_scores_no_parameter_is_more_important_and_the_rest_is_drawn(tmp_path, directions):
    drawn = search_pngs(stored(tmp_path, trials=4, directions=directions, scored=False), name="s")
    assert list(drawn) == [HISTORY, PARALLEL, PARETO][: 1 + len(directions)]


def test_a_study_that_is_not_there_gives_no_picture(tmp_path):
    assert search_pngs(f"sqlite:///{tmp_path / 'none.db'}", name="s") == {}
    assert not (tmp_path / "none.db").exists()
