"""Optuna's own plots of a study, as PNG bytes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.trial import TrialState

from tutti.search import database
from tutti.search.checks import OBJECTIVES, objectives_of
from tutti.search.warm_start import is_older

HISTORY, IMPORTANCES, PARALLEL, PARETO = "search_history", "importances", "parallel_coordinates", "pareto_front"

_SIZE, _WIDE, _DPI = (5.6, 3.9), (9.5, 4.2), 150
_LEAST = 2  # finished trials, below which none of the plots says anything


def search_pngs(url: str, *, name: str) -> dict[str, bytes]:
    """The study's search history, parameter importances (fANOVA, Hutter et al. 2014) and parallel coordinates.

    Of several objectives the first one's, and the Pareto front where there are two or three. A plot that the trials are
    too few or too alike for is left out.

    Args:
        url: the study's database, which is not written to.

    Raises:
        StorageError: where the database cannot be read.
    """
    study = _own_finished(url, name)
    if study is None or len(study.trials) < _LEAST:
        return {}
    import matplotlib as mpl
    from optuna.visualization import matplotlib as plots

    several, names = len(study.directions) > 1, objectives_of(study)
    first: dict[str, Any] = {"target": lambda trial: trial.values[0]} if several else {}
    wanted: dict[str, Callable[[], Any]] = {
        HISTORY: lambda: _whole_numbers(plots.plot_optimization_history(study, target_name=names[0], **first)),
        IMPORTANCES: lambda: plots.plot_param_importances(study, target_name=names[0], **first),
        PARALLEL: lambda: plots.plot_parallel_coordinate(study, target_name=names[0], **first),
    }
    if len(study.directions) in (2, 3):
        wanted[PARETO] = lambda: plots.plot_pareto_front(study, target_names=[*names])
    mpl.use("Agg")  # Optuna draws by pyplot, which would look for a screen
    drawn = {title: _drawn(draw, _WIDE if title == PARALLEL else _SIZE) for title, draw in wanted.items()}
    return {title: png for title, png in drawn.items() if png is not None}


def _own_finished(url: str, name: str) -> optuna.Study | None:
    """The study's finished trials, without those that it started warm from, as a study in memory."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with database.faults(url):
        storage = database.to_read(url)
        if storage is None:
            return None
        try:
            kept = optuna.load_study(storage=storage, study_name=name)
            trials = [one for one in kept.get_trials(states=(TrialState.COMPLETE,)) if not is_older(one)]
            study = optuna.create_study(directions=kept.directions)
            study.set_user_attr(OBJECTIVES, objectives_of(kept))
        except KeyError:
            return None
        finally:
            storage.remove_session()
            storage.engine.dispose()
    study.add_trials(trials)
    return study


def _whole_numbers(axes: Any) -> Any:
    axes.xaxis.get_major_locator().set_params(integer=True)
    return axes


def _drawn(draw: Callable[[], Any], size: tuple[float, float]) -> bytes | None:
    import matplotlib as mpl
    from matplotlib import pyplot

    there = set(pyplot.get_fignums())
    with mpl.rc_context(), warnings.catch_warnings():  # Optuna sets a style for all that is drawn after it
        warnings.simplefilter("ignore")  # that these plots are experimental
        try:
            axes = draw()
            figure = (axes.flat[0] if hasattr(axes, "flat") else axes).figure
            figure.set_size_inches(*size)
            sink = io.BytesIO()
            figure.savefig(sink, format="png", dpi=_DPI, bbox_inches="tight", facecolor="white")
            return sink.getvalue()
        except (ValueError, RuntimeError):  # nothing varies, or no trial has all parameters
            return None
        finally:
            for number in set(pyplot.get_fignums()) - there:
                pyplot.close(number)
