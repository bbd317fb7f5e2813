"""Optuna's own plots of a study, as PNG bytes."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from tutti.errors import first_line
from tutti.headless import load_matplotlib
from tutti.search import database
from tutti.search.checks import objectives_of, set_objectives
from tutti.search.warm_start import is_older

_logger = logging.getLogger(__name__)

HISTORY, IMPORTANCES, PARALLEL, PARETO = "search_history", "importances", "parallel_coordinates", "pareto_front"

_SIZE, _WIDE, _DPI = (5.6, 3.9), (9.5, 4.2), 150
_PALEST = 0.7  # share of red in the palest blue of a line
_MIN_TRIALS = 2  # finished trials, below which no plot is informative


def search_pngs(url: str, *, name: str, owner: str | None = None) -> dict[str, bytes]:
    """The study's search history, parameter importances (fANOVA, Hutter et al. 2014) and parallel coordinates.

    With several objectives these show the first one, and the Pareto front is added for two or three. Plots for which
    there are too few trials, or trials that do not differ, are left out.

    Args:
        url: the study's database, opened read-only.

    Raises:
        StorageError: where the database cannot be read.
    """
    study = _own_finished(url, name, owner)
    if study is None or len(study.trials) < _MIN_TRIALS:
        return {}
    load_matplotlib()
    import matplotlib as mpl
    from optuna.visualization import matplotlib as plots

    parameters = sorted({parameter for trial in study.trials for parameter in trial.params})  # as Optuna has them
    several, names = len(study.directions) > 1, objectives_of(study)
    first: dict[str, Any] = {"target": lambda trial: trial.values[0]} if several else {}
    wanted: dict[str, Callable[[], Any]] = {
        HISTORY: lambda: _whole_numbers(plots.plot_optimization_history(study, target_name=names[0], **first)),
        IMPORTANCES: lambda: plots.plot_param_importances(study, target_name=names[0], **first),
        PARALLEL: lambda: _named(
            _visible(plots.plot_parallel_coordinate(study, target_name=names[0], **first)), [names[0], *parameters]
        ),
    }
    if len({trial.values[0] for trial in study.trials}) == 1:
        del wanted[IMPORTANCES]  # Optuna would draw them, all 0
    if len(study.directions) in (2, 3):
        wanted[PARETO] = lambda: plots.plot_pareto_front(study)
    mpl.use("Agg")  # Optuna draws with pyplot, which would otherwise look for a display
    pngs = {title: _png(draw, _WIDE if title == PARALLEL else _SIZE) for title, draw in wanted.items()}
    return {title: png for title, png in pngs.items() if png is not None}


def _own_finished(url: str, name: str, owner: str | None) -> optuna.Study | None:
    """An in-memory copy of the study with its finished trials, without those of older studies (warm start)."""
    with database.reading(url, study=name, owner=owner) as stored:
        if stored is None:
            return None
        study = optuna.create_study(directions=stored.directions)
        set_objectives(study, objectives_of(stored))
        study.add_trials([trial for trial in stored.get_trials(states=(TrialState.COMPLETE,)) if not is_older(trial)])
    return study


def _whole_numbers(axes: Any) -> Any:
    axes.xaxis.get_major_locator().set_params(integer=True)
    return axes


def _visible(axes: Any) -> Any:
    """The lines in colours that a white page shows: Optuna's palest is nearly white."""
    from matplotlib.colors import ListedColormap

    for lines in axes.collections:
        colours = lines.get_cmap()(range(256))
        dark = colours[:, 0] < _PALEST
        lines.set_cmap(ListedColormap(colours[dark]))
    return axes


def _named(axes: Any, names: Sequence[str]) -> Any:
    """The whole name below each coordinate, beginning there; Optuna cuts names after 17 letters and centres them."""
    axes.set_xticks(range(len(names)), names, rotation=330, ha="left", rotation_mode="anchor")
    return axes


def _png(draw: Callable[[], Any], size: tuple[float, float]) -> bytes | None:
    import matplotlib as mpl
    from matplotlib import pyplot

    open_figures = set(pyplot.get_fignums())
    with mpl.rc_context(), warnings.catch_warnings():  # Optuna changes the global matplotlib style
        warnings.simplefilter("ignore")  # these plots are marked experimental
        try:
            axes = draw()
            figure = (axes.flat[0] if hasattr(axes, "flat") else axes).figure
            figure.set_size_inches(*size)
            sink = io.BytesIO()
            figure.savefig(sink, format="png", dpi=_DPI, bbox_inches="tight", facecolor="white")
            return sink.getvalue()
        except (ValueError, RuntimeError):  # nothing varies, or no trial has all parameters
            return None
        except Exception as error:  # no picture is worth a report
            _logger.warning("A picture of the search was not drawn: %s", first_line(error))
            return None
        finally:
            for number in set(pyplot.get_fignums()) - open_figures:
                pyplot.close(number)
