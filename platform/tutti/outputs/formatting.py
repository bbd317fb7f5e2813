"""How scores and estimates are written as text, and Markdown tables of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from tutti.errors import counted
from tutti.records import TRIAL_KEY

if TYPE_CHECKING:
    from tutti.ensembling.nested import Estimate
    from tutti.outputs.election.members import Member


_SHORT = {
    "learning_rate": "lr",
    "per_device_train_batch_size": "batch",
    "num_train_epochs": "epochs",
    "gradient_accumulation_steps": "accumulate",
    "lr_scheduler_type": "schedule",
    "label_smoothing_factor": "smoothing",
    "warmup_steps": "warmup",
    "weight_decay": "decay",
    "head_dropout": "dropout",
}
_LONGEST = 14  # characters of a short name


def number(score: float | None) -> str:
    """A score with four decimals, or a dash."""
    return "–" if score is None else f"{score:.4f}"


def short(value: object) -> str:
    """A parameter's value for a table: floats with three significant digits, no value as a study file writes it."""
    if value is None:
        return "null"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def short_names(names: Sequence[str]) -> list[str]:
    """Names for the heads of columns; a name that would be another's stays whole."""
    found = [_shortened(name) for name in names]
    return [new if found.count(new) == 1 and new not in names else name for name, new in zip(names, found, strict=True)]


def _shortened(name: str) -> str:
    if name in _SHORT:
        return _SHORT[name]
    words = name.replace("learning_rate", "lr").split("_")
    while len("_".join(words)) > _LONGEST and len(words) > 1:
        words = words[1:]
    return "_".join(words)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as in ``0:01:30``."""
    return str(timedelta(seconds=round(seconds)))


def called(key: str) -> str:
    """A voter in a sentence: ``trial t0003``, or ``guest lgbm``."""
    return f"{'trial' if TRIAL_KEY.fullmatch(key.rpartition('/')[2]) else 'guest'} {key}"


def counted_voters(keys: Collection[str]) -> str:
    """How many trials, and guests if there are any."""
    guests = sum(called(key).startswith("guest") for key in keys)
    return counted(len(keys) - guests, "trial") + f" and {counted(guests, 'guest')}" * bool(guests)


def estimate_text(estimate: Estimate | None) -> str:
    """An estimate with its interval, or a dash."""
    return "–" if estimate is None else str(estimate)


def signed(estimate: Estimate | None) -> str:
    """A difference with its sign and interval, or a dash."""
    return "–" if estimate is None else f"{'+' if estimate.score >= 0 else ''}{estimate}"


def verdict(gain: Estimate, *, rows: str, points: bool, than: str = "the best trial") -> str:
    """Whether the vote is better than one trial, in one sentence: both on rows that chose neither.

    Args:
        rows: on which rows, as in ``400 validation rows``.
        points: whether the score is a share, of which hundredths are points.

    Example:
        >>> verdict(Estimate(0.009, 0.0153), rows="400 validation rows", points=True)
        'On 400 validation rows the vote cannot be told from the best trial (+0.9 ± 3.0 points).'
    """
    size, width = abs(gain.score), gain.high - gain.score
    sign = "-" if gain.score < 0 else "+"
    text = f"{100 * size:.1f} ± {100 * width:.1f} points" if points else f"{size:.4f} ± {width:.4f}"
    if gain.low > 0:
        return f"On {rows} the vote beats {than} by {text}."
    if gain.high < 0:
        return f"On {rows} {than} beats the vote by {text}."
    return f"On {rows} the vote cannot be told from {than} ({sign}{text})."


def page(*blocks: str) -> str:
    """A Markdown page of blocks, such as paragraphs and tables, with an empty line between two; without empty ones."""
    return "\n\n".join(filter(None, blocks)) + "\n"


def members_table(members: Sequence[tuple[str, Sequence[Member]]]) -> str:
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


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. Bars, line breaks and HTML in cells are escaped."""
    lines = (" | ".join(harmless(cell).replace("|", "\\|") for cell in row) for row in (head, *rows))
    first, *rest = (f"| {line} |" for line in lines)
    return "\n".join([first, "|" + " --- |" * len(head), *rest])


def files_section(files: Mapping[str, str]) -> tuple[str, ...]:
    """The blocks of the section that lists the files beside a card with their SHA-256; none if there are none."""
    rows = [(name, f"`{digest}`") for name, digest in files.items()]
    return ("## Files", table(("file", "SHA-256"), rows)) if rows else ()
