"""The plots of a study's search, of all its trials in their own numbers, stopped ones too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

from tutti.config.study import Objective
from tutti.outputs.formatting import duration, number, short
from tutti.outputs.report.svg import Axis, Plot
from tutti.records import Scalar, TrialRecord, TrialState, varied_parameters
from tutti.search.objectives import DIRECTIONS, pareto_front

FEW = 20
"""Finished trials, below which importances of parameters are mostly chance."""
_STYLES = {TrialState.FINISHED: "finished", TrialState.STOPPED: "stopped", TrialState.FAILED: "failed"}
_RATIO = 20  # between the largest and the smallest value, from which a parameter's axis is logarithmic


def search_plots(
    trials: Sequence[TrialRecord],
    *,
    objectives: Sequence[Objective],
    evals_per_epoch: int = 1,
    folds: int | None = None,
) -> dict[str, str]:
    """SVG texts by name; those that would show nothing are left out.

    Args:
        objectives: of the study; the first is the one whose history is drawn.
        evals_per_epoch: how often trials report in an epoch.
        folds: of each trial; none without.
    """
    first = objectives[0]
    plots = {
        "history": _history(trials, first),
        "curves": _curves(trials, evals_per_epoch, folds),
        "cost": _cost(trials),
        "timeline": _timeline(trials),
        "front": _front(trials, objectives),
        "parallel": _parallel(trials, first),
    }
    return {name: svg for name, svg in plots.items() if svg}


def importance_bars(importances: Mapping[str, float]) -> str:
    """A bar for each parameter, the most important first."""
    lanes = [*importances]
    left = 20 + 7.2 * max(map(len, lanes))
    plot = Plot(x=Axis([0, 1], pad=0), lanes=lanes, left=left, right=44, height=56 + 26 * len(lanes))
    for lane, (name, value) in enumerate(importances.items()):
        plot.bar(0, value, lane, "finished", says=f"{name}: {100 * value:.0f} %")
        plot.text(value, lane, f"{100 * value:.0f} %", dx=5)
    return plot.svg("How much of the variance each parameter explains")


def _history(trials: Sequence[TrialRecord], objective: Objective) -> str | None:
    valued = [(trial, value) for trial in trials if (value := _value(trial, objective)) is not None]
    if not valued:
        return None
    x = Axis([trial.number for trial in trials], whole=True)
    plot = Plot(x=x, y=Axis([value for _, value in valued]), xlabel="trial", ylabel=objective)
    finished = [(trial.number, value) for trial, value in valued if trial.state is TrialState.FINISHED]
    better = max if DIRECTIONS[objective] == "maximize" else min
    bests = accumulate((value for _, value in finished), better)
    plot.step([(place, best) for (place, _), best in zip(finished, bests, strict=True)], "best")
    for trial, value in valued:
        plot.dot(trial.number, value, _style(trial), says=_says(trial), key=trial.key)
    return plot.svg(f"The {objective} of each trial")


def _curves(trials: Sequence[TrialRecord], evals_per_epoch: int, folds: int | None) -> str | None:
    reported = [trial for trial in trials if trial.scores_by_epoch]
    if max((len(trial.scores_by_epoch) for trial in reported), default=0) < 2:
        return None
    unit = 1 if folds else evals_per_epoch
    epochs = [epoch / unit for trial in reported for epoch in trial.scores_by_epoch]
    scores = [score for trial in reported for score in trial.scores_by_epoch.values()]
    xlabel = "folds so far" if folds else "epoch"
    plot = Plot(x=Axis(epochs, whole=True), y=Axis(scores), xlabel=xlabel, ylabel="score", width=1000, height=360)
    for trial in reported:
        points = [(epoch / unit, score) for epoch, score in sorted(trial.scores_by_epoch.items())]
        plot.line(points, f"curve {_style(trial)}", key=trial.key, says=_says(trial))
        for epoch, score in points[:-1]:
            plot.dot(epoch, score, f"small {_style(trial)}", key=trial.key, size=2)
        plot.dot(*points[-1], _style(trial), key=trial.key, says=_says(trial))
    return plot.svg("The score of each trial by epoch")


def _cost(trials: Sequence[TrialRecord]) -> str | None:
    ended = [trial for trial in trials if trial.score is not None and trial.seconds]
    if not ended:
        return None
    x = Axis([trial.seconds or 0 for trial in ended], seconds=True, text=duration)
    plot = Plot(x=x, y=Axis([trial.score or 0 for trial in ended]), xlabel="time", ylabel="score")
    for trial in ended:
        plot.dot(trial.seconds or 0, trial.score or 0, _style(trial), says=_says(trial), key=trial.key)
    return plot.svg("The score of each trial against its time")


def _timeline(trials: Sequence[TrialRecord]) -> str | None:
    """Bars of the trials that ended, in as few lanes as were busy at once: those of a study's pools of workers."""
    spans = [(each.ended - each.seconds, each.ended, each) for each in trials if each.ended and each.seconds]
    spans.sort(key=lambda span: span[:2])
    if not spans:
        return None
    began = spans[0][0]
    free: list[float] = []  # by lane, when it is free again
    placed = []
    for start, end, trial in spans:
        slack = 0.02 * (end - start)  # workers write the last of one trial while the next begins
        lane = next((place for place, until in enumerate(free) if until <= start + slack), len(free))
        free[lane:] = [end, *free[lane + 1 :]]
        placed.append((start - began, end - began, lane, trial))
    x = Axis([0, *(end for _, end, *_ in placed)], seconds=True, text=duration, pad=0.01)
    lanes = [str(place + 1) for place in range(len(free))]
    plot = Plot(x=x, lanes=lanes, xlabel="since the study began", left=30, width=1000, height=64 + 26 * len(lanes))
    for start, end, lane, trial in placed:
        plot.bar(start, end, lane, f"span {_style(trial)}", says=_says(trial), key=trial.key, tall=0.8)
    return plot.svg("When each trial ran")


def _front(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> str | None:
    if len(objectives) < 2:
        return None
    both = [(each, _value(each, objectives[0]), _value(each, objectives[1])) for each in trials]
    known = [(each, one, two) for each, one, two in both if one is not None and two is not None]
    if not known:
        return None
    front = pareto_front(trials, objectives)
    axes = [Axis([one for _, one, _ in known], text=short), Axis([two for *_, two in known], text=short)]
    plot = Plot(x=axes[0], y=axes[1], xlabel=objectives[0], ylabel=objectives[1])
    for trial, one, two in known:
        style = "vote" if trial.key in front else _style(trial)
        plot.dot(one, two, style, says=_says(trial), key=trial.key)
    return plot.svg("Two objectives of each trial")


def _parallel(trials: Sequence[TrialRecord], objective: Objective) -> str | None:
    """A line for each trial through its parameters to its objective."""
    valued = [(trial, value) for trial in trials if (value := _value(trial, objective)) is not None]
    names = varied_parameters([trial for trial, _ in valued])
    if len(valued) < 2 or not names:
        return None
    shares = {name: _shares([trial.parameters.get(name) for trial, _ in valued]) for name in names}
    shares[objective] = _shares([value for _, value in valued])
    count = len(shares)
    plot = Plot(x=None, width=max(1000, 110 * count), height=340, left=70, right=70)
    for place, (name, (_, marks)) in enumerate(shares.items()):
        x = place / (count - 1)
        plot.line([(x, 0), (x, 1)], "axis")
        plot.text(x, -0.09, name if len(name) <= 16 else f"{name[:15]}…", style="label", anchor="middle")
        for share, words in marks:
            plot.text(x, share, words, dx=5, style="mark")
    ranks = sorted(value for _, value in valued)
    for index, (trial, value) in enumerate(valued):
        points = [(place / (count - 1), found[index]) for place, (found, _) in enumerate(shares.values())]
        known = [(x, share) for x, share in points if share is not None]
        quality = ranks.index(value) / max(len(ranks) - 1, 1)
        style = f' style="--q:{quality if DIRECTIONS[objective] == "maximize" else 1 - quality:.2f}"'
        plot.line(known, "path", says=_says(trial), key=trial.key, extra=style)
    return plot.svg(f"The parameters of each trial and its {objective}")


def _shares(values: Sequence[Scalar]) -> tuple[list[float | None], list[tuple[float, str]]]:
    """Where each value is on an axis of its own, from 0 to 1, and the axis's marks."""
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == sum(value is not None for value in values) and len(set(numbers)) > 1:
        low, high = min(numbers), max(numbers)
        log = low > 0 and high / low > _RATIO
        axis = Axis(numbers, log=log, pad=0)
        ends = [(axis.share(value), short(value)) for value in (low, high)]
        return [None if value is None else axis.share(float(value)) for value in values], ends
    texts = sorted({short(value) for value in values})
    place = {text: (index + 0.5) / len(texts) for index, text in enumerate(texts)}
    return [place[short(value)] for value in values], [(share, text) for text, share in place.items()]


def _value(trial: TrialRecord, objective: Objective) -> float | None:
    value = trial.score if objective == "score" else trial.measured.get(objective)
    return value if value is not None and math.isfinite(value) else None


def _style(trial: TrialRecord) -> str:
    return _STYLES.get(trial.state, "running")


def _says(trial: TrialRecord) -> str:
    """What is shown of a trial that is pointed at."""
    time = f", {duration(trial.seconds)}" if trial.seconds else ""
    parameters = [f"{name} = {short(value)}" for name, value in trial.parameters.items()]
    return "\n".join([f"{trial.key}: {number(trial.score)}, {trial.state}{time}", *parameters])
