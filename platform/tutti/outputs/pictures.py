"""Pictures as PNG bytes, drawn with matplotlib's object-oriented interface: no window, no global state."""

from __future__ import annotations

import io
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti.errors import first_line
from tutti.headless import load_matplotlib
from tutti.tasks.kinds.entities import entities_of, types_of

if TYPE_CHECKING:
    from tutti.ensembling.nested import Estimate
    from tutti.outputs.election.card import Calibration, Card
    from tutti.tasks.kinds.protocol import Kind

_logger = logging.getLogger(__name__)

_COUNTED = 20  # up to this many classes, each cell shows its count
_NAMED = 120  # up to this many classes, the axes name each one
_LONGEST = 24  # columns of a drawn class name; a Chinese character takes two

_ENSEMBLE, _MEMBER, _OTHER = "#d55e00", "#0072b2", "#8a8a8a"  # distinguishable by colour-blind readers


def drawn(pictures: Mapping[str, Callable[[], bytes]]) -> dict[str, bytes]:
    """Draws the pictures, by name. One that fails is left out, with a line in the log: none is worth a submission."""
    pngs = {}
    for name, draw in pictures.items():
        try:
            pngs[name] = draw()
        except Exception as error:
            _logger.warning("The picture %s was not drawn: %s", name, first_line(error))
    return pngs


def confusion_matrix_png(labels: np.ndarray, decided: np.ndarray, class_names: Sequence[str], title: str) -> bytes:
    """True classes in rows, predicted classes in columns; the shade is the share of the true class's rows.

    Args:
        labels: ``(rows,)`` int64 class indices.
        decided: ``(rows,)`` int64 class indices.
        class_names: ``(classes,)``. A long name is cut; one that no installed font can draw is replaced by its number.
    """
    count = len(class_names)
    flat = labels * count + decided
    matrix = np.bincount(flat, minlength=count * count).reshape(count, count)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    named = range(0, count, -(-count // _NAMED))
    drawn_by = families()
    drawable = characters(drawn_by)
    cut = {index: _cut(class_names[index]) for index in named}
    told_apart = Counter(cut.values())
    names = [
        name if drawable.issuperset(map(ord, name)) and told_apart[name] == 1 else f"#{index}"
        for index, name in cut.items()
    ]
    side = min(2.5 + count * (0.5 if count <= _COUNTED else 0.2), 30)
    side += 0.1 * max(max(map(_columns, names)) - 4, 0)  # names beside the matrix take none of its room
    figure = _figure(side + 0.6, side)
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true class", fraction=0.046)
    style: dict[str, Any] = {"fontfamily": drawn_by, "fontsize": 9 if count <= _COUNTED else 7, "parse_math": False}
    turn = any(len(name) > 3 for name in names) or count > _COUNTED
    axes.set_xticks(named, names, rotation=90 if turn else 0, **style)
    axes.set_yticks(named, names, **style)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(title, parse_math=False, fontsize=11)
    if count <= _COUNTED:
        for (row, column), number in np.ndenumerate(matrix):
            colour = "white" if shares[row, column] > 0.55 else "#333333"
            axes.text(column, row, str(number), ha="center", va="center", fontsize=8, color=colour)
    return _png(figure)


def scatter_png(labels: np.ndarray, values: np.ndarray, names: Sequence[str], title: str) -> bytes:
    """True values on the x axis, predicted values on the y axis; correct predictions lie on the diagonal.

    Args:
        labels, values: ``(rows,)``, or ``(rows, k)`` for a picture of each column; NaN where a label is missing.
        names: of the columns; empty for one.
    """
    labels, values = labels.reshape(len(labels), -1), values.reshape(len(values), -1)
    count = labels.shape[1]
    figure, grid = _grid(count, side=5.2 if count == 1 else 4)
    for index, axes in enumerate(grid):
        true, predicted = labels[:, index], values[:, index]
        low, high = float(min(np.nanmin(true), predicted.min())), float(max(np.nanmax(true), predicted.max()))
        edge = 0.03 * (high - low) or 0.5
        axes.plot([low, high], [low, high], color="#bbbbbb", zorder=1)
        axes.scatter(true, predicted, s=14, alpha=0.35, color=_MEMBER, edgecolors="none", zorder=2)
        axes.set_xlim(low - edge, high + edge)
        axes.set_ylim(low - edge, high + edge)
        axes.set_aspect("equal")
        axes.set_xlabel("true")
        axes.set_ylabel("predicted")
        axes.set_title(f"{title}: {names[index]}" if names else title, parse_math=False, fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
    return _png(figure)


def lengths_png(labels: np.ndarray, written: np.ndarray, names: Sequence[str], title: str) -> bytes:
    """Lengths in characters of ``(rows,)`` texts over those of their labels: texts that end too early or never show."""
    true, own = (np.array([len(text) for text in texts], dtype=np.float64) for texts in (labels, written))
    return scatter_png(true, own, (), f"{title}, characters")


def labels_png(labels: np.ndarray, decided: np.ndarray, names: Sequence[str], title: str) -> bytes:
    """A bar for each label, the commonest first: its F1, beside how many rows have it and how many were given it.

    Args:
        labels, decided: ``(rows, labels)``; NaN where a label is missing.
    """
    known, true = ~np.isnan(labels), labels == 1
    given = (decided == 1) & known
    counts = ((true & given).sum(axis=0), true.sum(axis=0), given.sum(axis=0))
    return _f1_png(*counts, names, title, unit="rows")


def entities_png(labels: np.ndarray, decided: np.ndarray, names: Sequence[str], title: str) -> bytes:
    """A bar for each type of entity, as ``labels_png`` draws labels.

    Args:
        labels, decided: ``(rows, units)`` tags.
    """
    types = types_of(names)
    true, found = entities_of(labels), entities_of(np.where(labels < 0, 0, decided))
    right = found.type[np.isin(found.keys, true.keys)]
    counted = [np.bincount(each, minlength=len(types)) for each in (right, true.type, found.type)]
    return _f1_png(counted[0], counted[1], counted[2], types, title, unit="entities")


def _f1_png(
    right: np.ndarray, true: np.ndarray, given: np.ndarray, names: Sequence[str], title: str, *, unit: str
) -> bytes:
    f1 = 2 * right / np.maximum(true + given, 1)
    order = np.argsort(-true, kind="stable")[:_NAMED]
    beside = [f"{true[index]} {unit}, {given[index]} given" for index in order]
    return _bars_png(f1[order], [names[index] for index in order], beside, title, xlabel="F1")


def _bars_png(shares: np.ndarray, names: Sequence[str], beside: Sequence[str], title: str, *, xlabel: str) -> bytes:
    """A bar from 0 to 1 for each name, the first one at the top, with some words beside it."""
    figure = _figure(6.4, 1.2 + 0.24 * len(names))
    axes = figure.add_subplot()
    axes.barh(range(len(names)), shares, color=_MEMBER, alpha=0.8)
    style: dict[str, Any] = {"fontfamily": families(), "fontsize": 9, "parse_math": False}
    axes.set_yticks(range(len(names)), [*map(_cut, names)], **style)
    for place, text in enumerate(beside):
        axes.annotate(text, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), xlabel=xlabel)
    return _titled(figure, axes, title)


def differences_png(labels: np.ndarray, decided: np.ndarray, names: Sequence[str], title: str) -> bytes:
    """How much higher the value of the better text, the first of ``(rows, 2)``, is: below 0 a pair is wrong."""
    above = decided[:, 0] - decided[:, 1]
    figure = _figure(6.4, 3.6)
    axes = figure.add_subplot()
    axes.hist(above, bins=min(60, max(10, len(above) // 20)), color=_MEMBER, alpha=0.8)
    axes.axvline(0, color=_OTHER)
    axes.set(xlabel=f"value of the better text above the other: right in {(above > 0).mean():.1%}", ylabel="pairs")
    return _titled(figure, axes, title)


def places_png(labels: np.ndarray, decided: np.ndarray, names: Sequence[str], title: str) -> bytes:
    """By the place of the right candidate, the share of rows where it was chosen: a model may favour a place."""
    rows = np.bincount(labels.astype(np.int64), minlength=len(names))
    right = np.bincount(labels[labels == decided].astype(np.int64), minlength=len(names))
    chosen = np.bincount(decided.astype(np.int64), minlength=len(names))
    beside = [f"{right_here} right, {chosen_here} chosen" for right_here, chosen_here in zip(rows, chosen, strict=True)]
    return _bars_png(right / np.maximum(rows, 1), names, beside, title, xlabel="chosen where it is right")


def predictions_png(kind: Kind, labels: np.ndarray, decided: np.ndarray, names: Sequence[str], title: str) -> bytes:
    """The picture of decisions beside labels that the kind asks for."""
    return _PICTURES[kind.picture](labels, decided, names, title)


_PICTURES: Mapping[str, Callable[[np.ndarray, np.ndarray, Sequence[str], str], bytes]] = {
    "confusion_matrix": confusion_matrix_png,
    "predicted_and_true": scatter_png,
    "differences": differences_png,
    "lengths": lengths_png,
    "scores_by_label": labels_png,
    "scores_by_type": entities_png,
    "confusions_of_units": lambda labels, decided, *own: confusion_matrix_png(
        labels[labels >= 0], decided[labels >= 0], *own
    ),
    "right_by_place": places_png,
}


def ensemble_png(card: Card) -> bytes:
    """One lane for the objective and one for each task: a dot for every single trial, a diamond for the ensemble.

    The diamond, with its 95 % interval, and the bar for the best trial are nested estimates, on rows that had no part
    in choosing them; the dots are the trials' own validation scores.
    """
    means = (card.objective, card.single, card.gain)
    weighted = "weighted " * (len({task.weight for task in card.tasks}) > 1)
    objectives = [trial.objective for trial in card.singles]
    lanes = [(f"objective ({weighted}mean)", objectives, means, _voters(card, None))]
    for task in card.tasks:
        scores = [trial.task_scores.get(task.task) for trial in card.singles]
        estimates = (task.score, task.single, task.gain)
        lanes.append((f"{task.task}\n{task.metric}", scores, estimates, _voters(card, task.task)))
    figure = _figure(8.5, 1.6 + 0.75 * len(lanes))
    axes = figure.add_subplot()
    for lane, (_, scores, (score, single, gain), voters) in enumerate(lanes):
        axes.axhline(lane, color="#e6e6e6", zorder=0)
        for votes, fill in ((True, _MEMBER), (False, "none")):
            pairs = zip(card.singles, scores, strict=True)
            values = [value for trial, value in pairs if value is not None and (trial.key in voters) == votes]
            edge = _MEMBER if votes else _OTHER
            axes.scatter(values, [lane] * len(values), s=46, facecolors=fill, edgecolors=edge, alpha=0.8, zorder=2)
        if score is not None and single is not None and gain is not None:
            _estimates(axes, lane, score, single, gain)
    axes.set_yticks(range(len(lanes)), [name for name, *_ in lanes])
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlabel("score; at the right the vote's nested estimate, and its gain over the best trial's")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{card.study}: every single trial and the vote", fontsize=11)
    _legend(figure)
    return _png(figure)


def reliability_png(calibrations: Mapping[str, Calibration]) -> bytes:
    """A reliability diagram for each task: accuracy against confidence, which agree on the diagonal.

    Each dot is a bin of confidence; its size is the share of rows in it.
    """
    figure, grid = _grid(len(calibrations), side=3.8)
    for axes, (task, calibration) in zip(grid, calibrations.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="#bbbbbb", zorder=1)
        for bins, error, name, colour in (
            (calibration.before, calibration.error_before, "as combined", _OTHER),
            (calibration.after, calibration.error_after, f"temperature {calibration.temperature:.2f}", _MEMBER),
        ):
            rows = sum(bin_.rows for bin_ in bins)
            points = [(bin_.confidence, bin_.accuracy) for bin_ in bins]
            sizes = [12 + 200 * bin_.rows / rows for bin_ in bins]
            axes.plot(*zip(*points, strict=True), color=colour, lw=1, alpha=0.6, zorder=2)
            label = f"{name}: error {error:.3f}"
            axes.scatter(*zip(*points, strict=True), s=sizes, color=colour, alpha=0.7, zorder=3, label=label)
        axes.set(xlim=(0, 1.05), ylim=(-0.03, 1.05), xlabel="confidence", ylabel="share right")
        axes.set_title(task, parse_math=False, fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        legend = axes.legend(loc="lower right", fontsize=8)
        for handle in legend.legend_handles:
            handle.set_sizes([30])
    return _png(figure)


def curves_png(curves: Mapping[str, Sequence[tuple[float, float]]], *, xlabel: str) -> bytes:
    """Scores over what grows: a line through the means at each place, and a dot for each score; the first one bold."""
    figure = _figure(6.4, 4.0)
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(curves.items()):
        places = sorted({place for place, _ in points})
        means = [float(np.mean([score for place, score in points if place == each])) for each in places]
        style = {"color": _ENSEMBLE, "lw": 2.5} if number == 0 else {"lw": 1, "alpha": 0.8}
        (line,) = axes.plot(places, means, label=_cut(name), **style)
        axes.scatter(*zip(*points, strict=True), s=14, color=line.get_color(), alpha=0.7)
    axes.set(xlabel=xlabel, ylabel="score")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return _png(figure)


def _estimates(axes: Any, lane: int, score: Estimate, single: Estimate, gain: Estimate) -> None:
    axes.plot([single.score] * 2, [lane - 0.25, lane + 0.25], color=_MEMBER, lw=2, zorder=2)
    axes.plot([score.low, min(score.high, 1.0)], [lane] * 2, color=_ENSEMBLE, lw=2, alpha=0.6, zorder=3)
    axes.scatter([score.score], [lane], s=110, marker="D", color=_ENSEMBLE, edgecolors="white", zorder=4)
    text = f"{score.score:.3f} ({gain.score:+.3f})"
    axes.annotate(text, (1.01, lane), xycoords=("axes fraction", "data"), va="center", color=_ENSEMBLE, fontsize=9)


def _voters(card: Card, task: str | None) -> set[str]:
    """Keys of the trials that vote for the task, or, for none, in any task."""
    voting = (member for own in card.tasks if task in (None, own.task) for member in own.members)
    return {member.key for member in voting if member.weight}


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], ls="", marker="o", color=_MEMBER, label="trial that votes, on its own rows"),
        Line2D([], [], ls="", marker="o", mfc="none", color=_OTHER, label="trial that does not vote"),
        Line2D([], [], ls="", marker="|", mew=2, ms=12, color=_MEMBER, label="best trial, nested estimate"),
        Line2D([], [], ls="", marker="D", color=_ENSEMBLE, label="vote, nested estimate"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def _columns(text: str) -> int:
    """Its width in Latin characters."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _cut(name: str) -> str:
    """The name, or as much of its beginning as fits, with an ellipsis."""
    if _columns(name) <= _LONGEST:
        return name
    while _columns(name) >= _LONGEST:
        name = name[:-1]
    return f"{name}…"


def _figure(width: float, height: float) -> Any:
    load_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _grid(count: int, *, side: float) -> tuple[Any, list[Any]]:
    """A figure with so many pictures, at most three beside each other, each as wide and as high as ``side``."""
    columns = min(count, 3)
    lines = -(-count // columns)
    figure = _figure(side * columns, side * lines)
    axes = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for surplus in axes[count:]:
        surplus.set_axis_off()
    return figure, axes[:count]


def _titled(figure: Any, axes: Any, title: str) -> bytes:
    axes.set_title(title, parse_math=False, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return _png(figure)


def _png(figure: Any) -> bytes:
    sink = io.BytesIO()
    figure.savefig(sink, format="png", dpi=110)
    return sink.getvalue()


_CJK_FONTS = (  # the first installed one draws Chinese class names
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "SimHei",
    "Arial Unicode MS",
)


def families() -> list[str]:
    """The default font, followed by an installed font with Chinese characters, if any."""
    load_matplotlib()
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return ["DejaVu Sans", *[name for name in _CJK_FONTS if name in installed][:1]]


def characters(families: Sequence[str]) -> set[int]:
    """The code points that the fonts have."""
    from matplotlib.font_manager import findfont, get_font

    return {code for family in families for code in get_font(findfont(family)).get_charmap()}
