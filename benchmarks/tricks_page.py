"""Generates the page docs/tricks.md from the runs of tricks.py."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import mean, median, stdev
from typing import Any

import torch
from scipy.stats import t as student
from shared import METRICS

TASKS = tuple(METRICS)
LIKELY = 0.95


@dataclass(frozen=True)
class Outcome:
    """The result of one trick over its seeds, with scores in percent.

    Attributes:
        score: the mean over tasks and seeds.
        by_task: each task's mean over seeds.
        difference: mean of the paired differences to the baseline; None for the baseline itself.
        error: standard error of the difference; None with a single pair.
        threshold: the least absolute value of a significant difference.
        cost: CPU seconds relative to the baseline with the same seed.
    """

    seeds: int
    score: float
    by_task: Mapping[str, float]
    difference: float | None
    error: float | None
    threshold: float | None
    cost: float

    @property
    def clear(self) -> bool:
        """Whether the difference is significant."""
        return self.difference is not None and self.threshold is not None and abs(self.difference) > self.threshold


def outcome(lines: Mapping[int, Mapping[str, Any]], base: Mapping[int, Mapping[str, Any]], *, of_base: bool) -> Outcome:
    """Compares the runs of a trick with those of the baseline, both by seed."""
    pairs = [(lines[seed], base[seed]) for seed in sorted(lines) if seed in base]
    differences = [100 * (trick["score"] - baseline["score"]) for trick, baseline in pairs]
    several = len(pairs) > 1 and not of_base
    error = stdev(differences) / len(pairs) ** 0.5 if several else None
    threshold = float(student.ppf((1 + LIKELY) / 2, len(pairs) - 1)) * error if error is not None else None
    return Outcome(
        seeds=len(pairs),
        score=100 * mean(trick["score"] for trick, _ in pairs),
        by_task={task: 100 * mean(trick["task_scores"][task] for trick, _ in pairs) for task in TASKS},
        difference=None if of_base else mean(differences),
        error=error,
        threshold=threshold,
        cost=mean(trick["seconds"] / baseline["seconds"] for trick, baseline in pairs),
    )


def page(
    outcomes: Mapping[str, Outcome],
    base: Mapping[int, Mapping[str, Any]],
    *,
    keys: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    training: Mapping[str, Any],
    failures: Sequence[str],
    command: str,
) -> str:
    """docs/tricks.md, which ``command`` writes."""
    seconds = mean(line["seconds"] for line in base.values())
    precision = next(iter(base.values()))["precision"]
    drawn = ", ".join(f"{count:,} of {task}" for task, count in settings["rows"].items())
    lines = [
        "# Tricks",
        "",
        "What each switch of `training:` does by itself to the score of one small encoder on four small tasks, and "
        f"what it costs. `{command}` measures it and writes this page.",
        "",
        f"MiniLM (6 layers, 22.7 million weights) fine-tuned on four tasks of GLUE together. Training rows: {drawn}, "
        f"drawn anew for each seed; up to {settings['validation_rows']} validation rows of a task, always the same. "
        "Every run has, where its trick does not say otherwise, "
        f"{_keys(training)}, and the defaults for the rest. Metrics: "
        f"{', '.join(f'{METRICS[task]} ({task})' for task in TASKS)}; the score is their mean, of the best epoch, as a "
        "study reports it. All numbers are in points of 100.",
        "",
        "A difference is the mean over seeds of trick minus baseline with the same seed (same rows, same order, "
        "the same first weights where the trick has them), with its standard error. Cost is the processor time of a "
        f"run, with evaluating and saving, in relation to the baseline's: {seconds:.0f} s, one thread, {precision}.",
        "",
        f"| trick | keys | seeds | score | difference | {' | '.join(TASKS)} | cost |",
        f"|---|---|---|---|---|{'---|' * len(TASKS)}---|",
    ]
    for name, found in outcomes.items():
        by_task = " | ".join(f"{found.by_task[task]:.1f}" for task in TASKS)
        shown = f"**{_difference(found)}**" if found.clear else _difference(found)
        own = _keys(keys[name]) or "none"
        lines.append(
            f"| {name} | {own} | {found.seeds} | {found.score:.2f} | {shown} | {by_task} | {found.cost:.2f}x |"
        )
    lines += ["", "## How to read it", "", *_reading(outcomes, base)]
    if failures:
        lines += ["", "These did not run:", "", *(f"* {failure}" for failure in failures)]
    kind = platform.machine()
    lines += ["", f"Measured on {date.today():%d %B %Y} with PyTorch {torch.__version__} on a {kind} CPU.", ""]
    return "\n".join(lines)


def _keys(training: Mapping[str, Any]) -> str:
    def said(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    return ", ".join(f"`{key}: {said(value)}`" for key, value in training.items())


def _difference(found: Outcome) -> str:
    if found.difference is None:
        return ""
    return f"{found.difference:+.2f}" + ("" if found.error is None else f" ± {found.error:.2f}")


def _reading(outcomes: Mapping[str, Outcome], base: Mapping[int, Mapping[str, Any]]) -> list[str]:
    compared = {name: found for name, found in outcomes.items() if found.difference is not None}
    measured = {name: found for name, found in compared.items() if found.error is not None}
    if len(base) < 2 or not measured:
        return ["With a single seed there is no telling a difference from chance: read the costs, not the scores."]
    seeds = min(found.seeds for found in measured.values())
    spread = stdev(100 * line["score"] for line in base.values())
    errors = [found.error or 0.0 for found in measured.values()]
    factor = float(student.ppf((1 + LIKELY) / 2, seeds - 1))
    clear = {name: found for name, found in measured.items() if found.clear}
    better = [f"{name} ({_difference(found)})" for name, found in clear.items() if (found.difference or 0) > 0]
    worse = [f"{name} ({_difference(found)})" for name, found in clear.items() if (found.difference or 0) < 0]
    ahead = sum((found.difference or 0) > 0 for found in compared.values())
    return [
        f"The baseline's score alone spreads by {spread:.2f} points over its {len(base)} seeds (standard deviation). "
        f"The median standard error of a difference is {median(errors):.2f} points, and with {seeds} pairs a "
        f"difference must be {factor:.1f} standard errors from zero before chance is an unlikely reason for it (a "
        f"two-sided t-test at {1 - LIKELY:.0%}; bold in the table). Among {len(measured)} tricks about "
        f"{(1 - LIKELY) * len(measured):.1f} would come out bold if none of them did anything.",
        "",
        f"* Better than the baseline beyond that: {', '.join(better) or 'none'}.",
        f"* Worse beyond that: {', '.join(worse) or 'none'}.",
        f"* All others cannot be told from the baseline at this size. {ahead} of {len(compared)} tricks have a "
        "positive difference.",
        "",
        "A trick that does nothing here may well help a larger encoder, more rows, longer training or another rate: "
        "each was tried at one setting, and the learning rate was not tuned for any but those that name one. Two "
        "stages train an epoch more than the baseline, and keep the best of one more. Let a search space vary what "
        "costs little, and let the study decide.",
        "",
        "The default pooling is attention, measured against the mean with more rows too: "
        "[training](training.md#attention-or-the-mean).",
    ]
