"""The plots of an ensemble, on rows that had no part in choosing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tutti.ensembling.nested import Estimate
from tutti.outputs.election.card import Calibration, Card
from tutti.outputs.election.members import Elected
from tutti.outputs.formatting import estimate_text, signed
from tutti.outputs.report.svg import Axis, Plot

if TYPE_CHECKING:
    from tutti.outputs.pseudo.report import TaskPseudoLabels
    from tutti.tasks.task import Task

_POINTS = 2000  # rows drawn at most
_CELLS = 40  # classes of a drawn confusion matrix at most


def forest(card: Card) -> str | None:
    """The best trial and the vote of each task side by side, with 95 % intervals."""
    found = [(f"{task.task} ({task.metric})", task.single, task.score, task.gain) for task in card.tasks if task.points]
    if len(card.tasks) > 1 and len(found) == len(card.tasks):
        found.append(("mean", card.single, card.objective, card.gain))
    lanes = [(name, single, score, gain) for name, single, score, gain in found if single and score and gain]
    if not lanes:
        return None
    ends = [end for _, single, score, _ in lanes for each in (single, score) for end in (each.low, min(each.high, 1))]
    names = [name if len(name) <= 26 else f"{name[:25]}…" for name, *_ in lanes]
    plot = Plot(
        x=Axis(ends),
        lanes=names,
        left=24 + 6.6 * max(map(len, names)),
        right=126,
        width=1000,
        height=60 + 44 * len(lanes),
        xlabel="score on rows that chose nothing, and the gain",
    )
    for lane, (name, single, score, gain) in enumerate(lanes):
        for estimate, place, style, what in (
            (single, lane - 0.17, "best", "best trial"),
            (score, lane + 0.17, "vote", "vote"),
        ):
            plot.line([(estimate.low, place), (min(estimate.high, 1), place)], f"interval {style}")
            plot.dot(estimate.score, place, f"mark {style}", says=f"{name}, {what}: {estimate}", size=5.5)
        plot.text(max(ends), lane, signed(gain), dx=24, style="vote-text" if gain.low > 0 else "")
    return plot.svg("The best trial and the vote of each task")


def reliability(calibration: Calibration) -> str:
    """How right the vote is where it is how sure, without and with the temperature."""
    unit = Axis([0, 1], pad=0.02)
    plot = Plot(x=unit, y=unit, xlabel="confidence", ylabel="share right", height=320)
    plot.line([(0, 0), (1, 1)], "axis")
    for bins, style, what in (
        (calibration.before, "quiet", "as combined"),
        (calibration.after, "finished", f"at temperature {calibration.temperature:.2f}"),
    ):
        rows = sum(each.rows for each in bins)
        plot.line([(each.confidence, each.accuracy) for each in bins], f"curve {style}")
        for each in bins:
            says = f"{what}: {each.rows} rows, confidence {each.confidence:.3f}, right {each.accuracy:.3f}"
            plot.dot(each.confidence, each.accuracy, style, says=says, size=3 + 9 * (each.rows / rows) ** 0.5)
    return plot.svg("Accuracy by confidence")


def members_plot(estimates: Sequence[Estimate], *, recipe: Estimate | None, voters: int) -> str | None:
    """The score of the plain vote by its number of members, and that of the recipe."""
    if len(estimates) < 2:
        return None
    ends = [end for each in estimates for end in (each.low, each.high)]
    count = len(estimates)
    plot = Plot(x=Axis([1, count], whole=True), y=Axis(ends), xlabel="members", ylabel="score")
    places = range(1, count + 1)
    lower, upper = (
        [(place, getattr(each, end)) for place, each in zip(places, estimates, strict=True)] for end in ("low", "high")
    )
    plot.area(lower, upper, "band")
    plot.line([(place, each.score) for place, each in zip(places, estimates, strict=True)], "curve finished")
    for place, each in zip(places, estimates, strict=True):
        plot.dot(place, each.score, "finished", says=f"the plain vote of the best {place}: {estimate_text(each)}")
    if recipe is not None:
        plot.dot(min(voters, count), recipe.score, "mark vote", says=f"the recipe's vote of {voters}: {recipe}", size=6)
    return plot.svg("The score of the vote by its number of members")


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix: ``counts[true][predicted]``, and the share of the true class's rows."""

    names: Sequence[str]
    counts: Sequence[Sequence[int]]
    shares: Sequence[Sequence[float]]


def matrix(names: Sequence[str], labels: np.ndarray, decided: np.ndarray) -> Matrix | None:
    """The confusion matrix of class indices; none of too many classes to be read."""
    count = len(names)
    if count > _CELLS:
        return None
    counts = np.bincount(labels * count + decided, minlength=count * count).reshape(count, count)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return Matrix(names, counts.tolist(), shares.tolist())


def scatter(labels: np.ndarray, decided: np.ndarray, names: Sequence[str], ids: Sequence[str]) -> str:
    """Predicted against true numbers, a plot for each column."""
    labels, decided = labels.reshape(len(labels), -1), decided.reshape(len(decided), -1)
    step = -(-len(labels) // _POINTS)
    plots = []
    for column, (true, predicted) in enumerate(zip(labels[::step].T, decided[::step].T, strict=True)):
        known = np.flatnonzero(~np.isnan(true))
        ends = [*true[known].tolist(), *predicted[known].tolist()]
        name = names[column] if len(names) else ""
        plot = Plot(
            x=Axis(ends), y=Axis(ends), xlabel=f"true {name}".strip(), ylabel="predicted", width=360, height=320
        )
        plot.line([(min(ends), min(ends)), (max(ends), max(ends))], "axis")
        for row in known.tolist():
            says = f"{ids[row * step]}: true {true[row]:.5g}, predicted {predicted[row]:.5g}"
            plot.dot(float(true[row]), float(predicted[row]), "faint", says=says, size=3)
        plots.append(plot.svg("Predicted against true"))
    return "".join(plots)


def precision_plot(pseudo: TaskPseudoLabels) -> str | None:
    """The expected precision of the pseudo-labels of each class, with its interval."""
    judged = [(each, each.interval) for each in pseudo.coverage if each.expected_precision is not None]
    if not judged or len(judged) > _CELLS:
        return None
    names = [each.label if len(each.label) <= 20 else f"{each.label[:19]}…" for each, _ in judged]
    left = 24 + 7 * max(map(len, names))
    plot = Plot(
        x=Axis([0, 1], pad=0.02), lanes=names, left=left, height=56 + 26 * len(names), xlabel="expected precision"
    )
    for lane, (each, interval) in enumerate(judged):
        assert interval is not None
        assert each.expected_precision is not None
        plot.line([(interval[0], lane), (interval[1], lane)], "interval best")
        says = f"{each.label}: {each.expected_precision:.3f} of {each.judged_rows} rows, {each.rows} labels"
        plot.dot(each.expected_precision, lane, "mark finished", says=says)
    return plot.svg("Expected precision of pseudo-labels")


def decisions_plot(task: Task, elected: Elected, ids: Sequence[str]) -> str | None:
    """Decisions beside labels of kinds without classes; others have tables."""
    draw = _DRAWN.get(task.kind.picture)
    if draw is None:
        return None
    return draw(elected.ballot.labels, elected.held_out.decisions[0], task.names, ids)


def _lengths(labels: np.ndarray, decided: np.ndarray, names: Sequence[str], ids: Sequence[str]) -> str:
    true, own = (np.array([len(text) for text in texts], dtype=np.float64) for texts in (labels, decided))
    return scatter(true, own, ("length in characters",), ids)


def _differences(labels: np.ndarray, decided: np.ndarray, names: Sequence[str], ids: Sequence[str]) -> str:
    """How many pairs have the better text so much above the other: below 0 they are wrong."""
    above = decided[:, 0] - decided[:, 1]
    counts, edges = np.histogram(above, bins=min(40, max(10, len(above) // 20)))
    plot = Plot(x=Axis(edges.tolist()), y=Axis([0, int(counts.max())]), xlabel="better above worse", ylabel="pairs")
    steps = [*zip(edges[:-1].tolist(), counts.tolist(), strict=True), (float(edges[-1]), 0)]
    corners = [corner for (x, y), (end, _) in pairwise(steps) for corner in ((x, float(y)), (end, float(y)))]
    plot.area([(steps[0][0], 0.0), (steps[-1][0], 0.0)], corners, "band")
    plot.line(corners, "curve finished")
    plot.line([(0, 0), (0, float(counts.max()))], "axis")
    return plot.svg("How much the better text is above the other")


_DRAWN = {"predicted_and_true": scatter, "lengths": _lengths, "differences": _differences}
