"""Plots as SVG text: sharp on every screen, coloured by the page's style, with a title for each mark to hover over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise

_MARGINS = (52.0, 24.0, 14.0, 42.0)  # left, right, top, bottom
_STEPS = (1, 2, 5, 10)
_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800)
Point = tuple[float, float]


class Axis:
    """From values to places on one side of a plot.

    Args:
        values: what has to be on it.
        log: whether equal ratios are equally far apart; all values are then positive.
        whole: whether only whole numbers are marked.
        text: writes a mark; by default as a short number.
        seconds: whether values are seconds, marked at round times.
        pad: share of the range that is left free at both ends.
    """

    def __init__(
        self,
        values: Iterable[float],
        *,
        log: bool = False,
        whole: bool = False,
        seconds: bool = False,
        text: Callable[[float], str] | None = None,
        pad: float = 0.05,
        marks: int = 5,
    ) -> None:
        found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        self._scale: Callable[[float], float] = math.log10 if log else float
        low, high = self._scale(min(found)), self._scale(max(found))
        edge = pad * (high - low) or (0.5 if whole or not high else abs(high) * 0.05 or 0.5)
        self.low, self.high = low - edge, high + edge
        self._log, self._whole, self._seconds, self._marks = log, whole, seconds, marks
        self._text = text or (lambda value: f"{value:.6g}")

    def share(self, value: float) -> float:
        """0 at the low end of the axis, 1 at the high one."""
        return (self._scale(value) - self.low) / (self.high - self.low)

    @property
    def marks(self) -> list[tuple[float, str]]:
        """Round values with their texts."""
        if self._log:
            first, last = math.floor(self.low), math.ceil(self.high)
            heads = (1,) if last - first > 2 else (1, 2, 5)
            values = [head * 10.0**power for power in range(first, last + 1) for head in heads]
            inside = [value for value in values if self.low <= math.log10(value) <= self.high]
            return [(value, self._text(value)) for value in inside]
        step = self._step()
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor((self.high - first * step) / step + 1e-9)
        return [(value, self._text(value)) for value in ((first + place) * step for place in range(count + 1))]

    def _step(self) -> float:
        rough = (self.high - self.low) / self._marks
        if self._seconds:
            return float(next((step for step in _SECONDS if step >= rough), _SECONDS[-1]))
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))
        return max(step, 1.0) if self._whole else step


class Plot:
    """A picture with two axes.

    Classes name the style: ``finished``, ``stopped``, ``failed``, ``running``, ``vote``, ``best``, ``quiet``.

    Args:
        x, y: axes; none for one without marks, whose places are shares from 0 to 1.
        lanes: names at the left of rows, first at the top, in place of ``y``: places are then 0, 1, 2 ...
        left: room for what is at the left, in pixels.
    """

    def __init__(
        self,
        *,
        x: Axis | None,
        y: Axis | None = None,
        lanes: Sequence[str] = (),
        xlabel: str = "",
        ylabel: str = "",
        width: float = 460,
        height: float = 290,
        left: float | None = None,
        right: float | None = None,
    ) -> None:
        self._x, self._y, self._lanes, self._size = x, y, lanes, (width, height)
        margins = list(_MARGINS)
        margins[0] = margins[0] if left is None else left
        margins[1] = margins[1] if right is None else right
        self._left, self._right, self._top, self._bottom = margins
        self._parts: list[str] = []
        self._frame(xlabel, ylabel)

    def place(self, x: float, y: float) -> Point:
        """Where a value is in the picture, in pixels."""
        width, height = self._size
        across = self._x.share(x) if self._x else x
        up = self._y.share(y) if self._y else y
        if self._lanes:
            up = 1 - (y + 0.5) / len(self._lanes)
        inner, tall = width - self._left - self._right, height - self._top - self._bottom
        return round(self._left + across * inner, 1), round(self._top + (1 - up) * tall, 1)

    def dot(self, x: float, y: float, style: str, *, says: str = "", key: str = "", size: float = 4.5) -> None:
        cx, cy = self.place(x, y)
        self._add("circle", style, says, key, f'cx="{cx}" cy="{cy}" r="{size:g}"')

    def line(self, points: Sequence[Point], style: str, *, says: str = "", key: str = "", extra: str = "") -> None:
        if points:
            path = " ".join(f"{x:g},{y:g}" for x, y in (self.place(*point) for point in points))
            self._add("polyline", style, says, key, f'points="{path}"{extra}')

    def step(self, points: Sequence[Point], style: str) -> None:
        """A line that goes on level until the next point."""
        corners = [corner for (_, before), (x, y) in pairwise(points) for corner in ((x, before), (x, y))]
        self.line([*points[:1], *corners], style)

    def bar(
        self, start: float, end: float, lane: float, style: str, *, says: str = "", key: str = "", tall: float = 0.6
    ) -> None:
        """A bar along ``x`` in a lane."""
        (x, y), (further, _) = self.place(start, lane), self.place(end, lane)
        height = tall * (self._size[1] - self._top - self._bottom) / max(len(self._lanes), 1)
        self._add(
            "rect",
            style,
            says,
            key,
            f'x="{x:g}" y="{y - height / 2:.1f}" width="{max(further - x, 1):.1f}" height="{height:.1f}" rx="2"',
        )

    def area(self, lower: Sequence[Point], upper: Sequence[Point], style: str) -> None:
        """What lies between two lines."""
        path = " ".join(f"{x:g},{y:g}" for x, y in (self.place(*point) for point in (*upper, *lower[::-1])))
        self._add("polygon", style, "", "", f'points="{path}"')

    def text(self, x: float, y: float, words: str, *, style: str = "", anchor: str = "start", dx: float = 0) -> None:
        px, py = self.place(x, y)
        self._words(px + dx, py + 4, words, style, anchor)

    def svg(self, says: str) -> str:
        """The picture.

        Args:
            says: what it shows, for those who hear the page.
        """
        width, height = self._size
        head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(says)}">'
        return f"{head}{''.join(self._parts)}</svg>"

    def _frame(self, xlabel: str, ylabel: str) -> None:
        width, height = self._size
        bottom, right = height - self._bottom, width - self._right
        if self._x:
            for value, words in self._x.marks:
                px, _ = self.place(value, 0)
                self._parts.append(f'<line class="grid" x1="{px}" y1="{self._top}" x2="{px}" y2="{bottom}"/>')
                self._words(px, bottom + 15, words, "", "middle")
        if self._y and not self._lanes:
            for value, words in self._y.marks:
                _, py = self.place(self._at_left(), value)
                self._parts.append(f'<line class="grid" x1="{self._left}" y1="{py}" x2="{right}" y2="{py}"/>')
                self._words(self._left - 6, py + 4, words, "", "end")
        for lane, name in enumerate(self._lanes):
            _, py = self.place(self._at_left(), lane)
            self._words(self._left - 8, py + 4, name, "", "end")
        self._words((self._left + right) / 2, height - 6, xlabel, "label", "middle")
        if ylabel:
            middle = (self._top + bottom) / 2
            turn = f' transform="rotate(-90 12 {middle:g})"'
            self._words(12, middle, ylabel, "label", "middle", turn)

    def _at_left(self) -> float:
        """A value of ``x`` that can be placed."""
        if self._x is None:
            return 0.0
        return self._x.marks[0][0] if self._x.marks else 10.0**self._x.low

    def _words(self, x: float, y: float, words: str, style: str, anchor: str, extra: str = "") -> None:
        if words:
            name = f' class="{style}"' if style else ""
            at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
            self._parts.append(f"<text {at}{name}{extra}>{escape(words)}</text>")

    def _add(self, element: str, style: str, says: str, key: str, where: str) -> None:
        named = f' data-k="{escape(key)}"' if key else ""
        title = f"<title>{escape(says)}</title>" if says else ""
        self._parts.append(f'<{element} class="{style}"{named} {where}>{title}</{element}>')
