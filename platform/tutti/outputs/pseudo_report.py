"""What a set of pseudo-labels covers, as a value, as JSON and as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tutti.outputs.card import members_table, table
from tutti.outputs.members import Member


@dataclass(frozen=True)
class ClassCoverage:
    """How many unlabelled rows got this label, their share of all unlabelled rows of the task, and their confidence."""

    label: str
    rows: int
    share: float
    mean_confidence: float | None


@dataclass(frozen=True)
class TaskPseudoLabels:
    """One task's pseudo-labels.

    Attributes:
        unlabelled: rows in the pool.
        labelled: rows that reached the threshold.
        mean_confidence: of those, or none.
        file: the training file, or none where no row reached the threshold.
        coverage: in the order of the task's classes.
    """

    task: str
    unlabelled: int
    labelled: int
    mean_confidence: float | None
    file: str | None
    coverage: tuple[ClassCoverage, ...]
    members: tuple[Member, ...]


@dataclass(frozen=True)
class PseudoLabelReport:
    """The whole set.

    Attributes:
        created: UTC, ISO 8601.
        rule: how the members were chosen and weighed.
        threshold: lowest confidence of a labelled row, inclusive.
        passed_over: tasks without unlabelled rows.
        files: SHA-256 of every file beside the report, by path.
    """

    study: str
    recipe: str
    created: str
    rule: str
    threshold: float
    tasks: tuple[TaskPseudoLabels, ...]
    passed_over: tuple[str, ...]
    notes: tuple[str, ...]
    files: Mapping[str, str]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What must be said beside the numbers, one sentence each: no coverage, tasks passed over, few members."""
        return (
            *(
                f"No row of task {each.task} reached {self.threshold:g}: no file was written for it. "
                "Lower the threshold in the recipe, or train better members."
                for each in self.tasks
                if not each.labelled
            ),
            *(f"Task {name} has no unlabelled rows and was passed over." for name in self.passed_over),
            *self.notes,
        )

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "remarks": self.remarks}, ensure_ascii=False, indent=2) + "\n"

    def to_markdown(self) -> str:
        """The report as a page for people."""
        lines = [
            f"# Pseudo-labels of study `{self.study}`, recipe `{self.recipe}`",
            "",
            f"Made {self.created}. Members: {self.rule}. A row is labelled where the ensemble's confidence is at least "
            f"{self.threshold:g}.",
            "",
        ]
        for remark in self.remarks:
            lines += [f"> {remark}", ""]
        for each in self.tasks:
            share = f"{each.labelled / max(each.unlabelled, 1):.1%}"
            mean = _number(each.mean_confidence)
            lines += [
                f"## {each.task}",
                "",
                f"{each.labelled:,} of {each.unlabelled:,} rows ({share}), mean confidence {mean}.",
                "",
                *table(
                    ("label", "rows", "share of unlabelled rows", "mean confidence"),
                    [
                        (one.label, f"{one.rows:,}", f"{one.share:.1%}", _number(one.mean_confidence))
                        for one in each.coverage
                    ],
                ),
                "",
            ]
            if each.file is not None:
                lines += [f"As training rows of the next study: `extra_train: [{{path: {each.file}}}]`", ""]
        lines += ["## Members", "", *members_table([(each.task, each.members) for each in self.tasks]), ""]
        lines += ["## Files", ""]
        lines += table(("file", "SHA-256"), [(name, f"`{digest}`") for name, digest in self.files.items()])
        return "\n".join([*lines, ""])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
