"""How scores and estimates are written as text, and Markdown tables of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tutti.ensembling.nested import Estimate
    from tutti.outputs.election.members import Member


def number(score: float | None) -> str:
    """A score with four decimals, or a dash."""
    return "–" if score is None else f"{score:.4f}"


def short(value: object) -> str:
    """A parameter's value for a table: floats with three significant digits, no value as a study file writes it."""
    if value is None:
        return "null"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as in ``0:01:30``."""
    return str(timedelta(seconds=round(seconds)))


def estimate_text(estimate: Estimate | None) -> str:
    """An estimate with its interval, or a dash."""
    return "–" if estimate is None else str(estimate)


def signed(estimate: Estimate | None) -> str:
    """A difference with its sign and interval, or a dash."""
    return "–" if estimate is None else f"{'+' if estimate.score >= 0 else ''}{estimate}"


def members_table(members: Sequence[tuple[str, Sequence[Member]]]) -> list[str]:
    """A Markdown table with one row for each task and member."""
    rows = [
        (task, member.key, f"{member.weight:.4f}", f"{member.score:.4f}", f"{member.objective:.4f}")
        for task, group in members
        for member in group
    ]
    return table(("task", "trial", "weight", "validation score", "objective"), rows)


def harmless(text: str) -> str:
    """Makes text, such as a class's name, safe in a Markdown line: removes line breaks and escapes HTML."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table. Bars, line breaks and HTML in cells are escaped."""
    lines = (" | ".join(harmless(cell).replace("|", "\\|") for cell in row) for row in (head, *rows))
    first, *rest = (f"| {line} |" for line in lines)
    return [first, "|" + " --- |" * len(head), *rest]


def files_section(files: Mapping[str, str]) -> list[str]:
    """The section that lists the files beside a card with their SHA-256; empty if there are none."""
    rows = [(name, f"`{digest}`") for name, digest in files.items()]
    return ["## Files", "", *table(("file", "SHA-256"), rows), ""] if rows else []
