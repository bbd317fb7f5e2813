"""An ensemble's card: what voted, with what weight, how good it was, and which files came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tutti.ensembling.calibrate import Bin
from tutti.ensembling.nested import LEAST_JUDGED, Estimate
from tutti.errors import counted
from tutti.outputs.members import Member
from tutti.tasks.metrics import is_regression

CAVEAT = (
    "The ensemble and the best trial alone are scored on rows that had no part in choosing members, weights or offsets "
    "(five folds, 95 % interval). Each trial's best epoch was chosen on all of these rows, and the search was steered "
    "by them: that part flatters every score here."
)
PICTURE = "ensemble.png"
RELIABILITY = "reliability.png"


@dataclass(frozen=True)
class Calibration:
    """How far an ensemble's confidence is from its accuracy, on rows that it was not fitted to.

    Attributes:
        temperature: fitted to what the ensemble says about all validation rows.
        error_before: expected calibration error as the votes were combined, from 0 to 1.
        error_after: the same at the temperature.
        before: how right rows of each confidence are, as the votes were combined.
        after: the same at the temperature.
    """

    temperature: float
    error_before: float
    error_after: float
    before: tuple[Bin, ...]
    after: tuple[Bin, ...]


@dataclass(frozen=True)
class TaskCard:
    """One task's part of the ensemble.

    Attributes:
        metric: the metric of every score here.
        method: how votes were combined; of ``auto`` what it chose.
        members: best first.
        score: the ensemble's, on rows that had no part in it; none where rows are too few to say.
        single: the same of the trial that is best in the task, chosen in the same way.
        gain: of the first over the second, with the interval of the difference.
        offsets: by class, of log-probabilities before the likeliest class is taken; none where it is taken as it is.
        calibration: none for a regression, and where rows are too few to say.
        rows: rows in each part, the validation rows among them.
    """

    task: str
    metric: str
    method: str
    members: tuple[Member, ...]
    score: Estimate | None
    single: Estimate | None
    gain: Estimate | None
    offsets: Mapping[str, float] | None
    calibration: Calibration | None
    rows: Mapping[str, int]


@dataclass(frozen=True)
class Single:
    """One trial alone: its objective, and its validation score by task."""

    key: str
    number: int
    objective: float
    task_scores: Mapping[str, float]


@dataclass(frozen=True)
class Graded:
    """What was predicted for a test part, scored by the labels of its rows.

    Attributes:
        score: the ensemble's.
        single: that of the trial with the best validation score in the task; none where it has no predictions for these
            rows, which only those that vote must have.
    """

    task: str
    part: str
    metric: str
    rows: int
    score: float
    single: float | None


@dataclass(frozen=True)
class Card:
    """The whole ensemble.

    Attributes:
        created: UTC, ISO 8601.
        rule: how the members were chosen and weighed.
        singles: every trial of the bank, best objective first, whether it votes or not.
        files: SHA-256 of every file beside the card, by path.
        graded: where the labels of test rows were given.
    """

    study: str
    recipe: str
    created: str
    rule: str
    tasks: tuple[TaskCard, ...]
    singles: tuple[Single, ...]
    notes: tuple[str, ...]
    files: Mapping[str, str]
    graded: tuple[Graded, ...] = ()

    @property
    def objective(self) -> Estimate | None:
        """The mean over tasks of the ensemble's scores; none where a task has none."""
        return _mean([task.score for task in self.tasks])

    @property
    def single(self) -> Estimate | None:
        """The mean over tasks of the best trials' scores, of each task its own."""
        return _mean([task.single for task in self.tasks])

    @property
    def gain(self) -> Estimate | None:
        """The mean over tasks of what the ensemble gains."""
        return _mean([task.gain for task in self.tasks])

    @property
    def remarks(self) -> tuple[str, ...]:
        """What must be said beside the numbers, one sentence each."""
        few = [f"{task.task} ({task.rows['validation']})" for task in self.tasks if task.score is None]
        unsaid = f"Too few validation rows to score an ensemble on, fewer than {LEAST_JUDGED}: {', '.join(few)}."
        alone = (
            f"The best trial in {one.task} does not vote and has no predictions for {one.part}: it has no score there."
            for one in self.graded
            if one.single is None
        )
        return (*((CAVEAT,) if len(few) < len(self.tasks) else ()), *((unsaid,) if few else ()), *self.notes, *alone)

    def to_json(self) -> str:
        means = {"objective": self.objective, "single": self.single, "gain": self.gain}
        said = {name: None if mean is None else asdict(mean) for name, mean in means.items()}
        return json.dumps({**asdict(self), **said, "remarks": self.remarks}, ensure_ascii=False, indent=2) + "\n"

    def to_markdown(self) -> str:
        """The card as a page for people."""
        return "\n".join(
            [
                f"# Ensemble `{self.recipe}` of study `{self.study}`",
                "",
                f"Made {self.created}. Members: {self.rule}, out of {counted(len(self.singles), 'trial')}.",
                "",
                *(line for note in self.remarks for line in (f"> {harmless(note)}", "")),
                "## Every single trial and the ensemble",
                "",
                f"![Validation score of every single trial and of the ensemble]({PICTURE})",
                "",
                *self._comparison(),
                "",
                "● marks a trial that votes for the task.",
                "",
                *self._graded(),
                "## How votes are combined",
                "",
                *self._tasks(),
                "",
                *self._reliability(),
                "## Members",
                "",
                *self._members(),
                "",
                *files_section(self.files),
            ]
        )

    def _comparison(self) -> list[str]:
        head = ("trial", "objective", *(f"{task.task} ({task.metric})" for task in self.tasks))
        rows = [
            (one.key, f"{one.objective:.4f}", *(self._cell(one, task) for task in self.tasks)) for one in self.singles
        ]
        rows.append(("best trial, chosen on other rows", *map(said, (self.single, *(t.single for t in self.tasks)))))
        estimates = [f"**{said(each)}**" for each in (self.objective, *(task.score for task in self.tasks))]
        rows.append(("**ensemble**, chosen on other rows", *estimates))
        rows.append(("ensemble over the best trial", *map(signed, (self.gain, *(task.gain for task in self.tasks)))))
        return table(head, rows)

    def _graded(self) -> list[str]:
        head = ("task", "rows", "metric", "labelled rows", "ensemble", "best trial")
        rows = [
            (one.task, one.part, one.metric, f"{one.rows:,}", f"{one.score:.4f}", _number(one.single))
            for one in self.graded
        ]
        return ["## On labelled test rows", "", *table(head, rows), ""] if rows else []

    def _tasks(self) -> list[str]:
        head = ("task", "method", "decision", "temperature", "calibration error before", "and at the temperature")
        rows = []
        for task in self.tasks:
            offsets = ", ".join(f"{name} {offset:+g}" for name, offset in (task.offsets or {}).items() if offset)
            known = task.calibration
            numbers = (known.temperature, known.error_before, known.error_after) if known else (None, None, None)
            shown = ("–" if number is None else f"{number:.3f}" for number in numbers)
            plain = "the value" if is_regression(task.metric) else "the likeliest"
            rows.append((task.task, task.method, f"offsets: {offsets}" if offsets else plain, *shown))
        return table(head, rows)

    def _reliability(self) -> list[str]:
        if not any(task.calibration for task in self.tasks):
            return []
        return [f"![How right the ensemble is where it is how sure, before and at the temperature]({RELIABILITY})", ""]

    @staticmethod
    def _cell(single: Single, task: TaskCard) -> str:
        votes = any(member.key == single.key for member in task.members)
        return f"{single.task_scores[task.task]:.4f}{' ●' if votes else ''}"

    def _members(self) -> list[str]:
        return members_table([(task.task, task.members) for task in self.tasks])


def _number(score: float | None) -> str:
    return "–" if score is None else f"{score:.4f}"


def said(estimate: Estimate | None) -> str:
    """An estimate with its interval, or a dash."""
    return "–" if estimate is None else str(estimate)


def signed(estimate: Estimate | None) -> str:
    """The same of a difference."""
    return "–" if estimate is None else f"{'+' if estimate.score >= 0 else ''}{estimate}"


def _mean(estimates: Sequence[Estimate | None]) -> Estimate | None:
    known = [each for each in estimates if each is not None]
    return Estimate.mean(known) if known and len(known) == len(estimates) else None


def members_table(members: Sequence[tuple[str, Sequence[Member]]]) -> list[str]:
    """Markdown: one row for each task and member."""
    rows = [
        (task, each.key, f"{each.weight:.4f}", f"{each.score:.4f}", f"{each.objective:.4f}")
        for task, group in members
        for each in group
    ]
    return table(("task", "trial", "weight", "validation score", "objective"), rows)


def harmless(text: str) -> str:
    """Text for a line of a Markdown page, such as a class's name: on one line, and no HTML."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table. Cells may hold anything; a bar, a line feed or HTML in one is made harmless."""
    lines = (" | ".join(harmless(cell).replace("|", "\\|") for cell in row) for row in (head, *rows))
    first, *rest = (f"| {line} |" for line in lines)
    return [first, "|" + " --- |" * len(head), *rest]


def files_section(files: Mapping[str, str]) -> list[str]:
    """The files that stand beside a card, with their SHA-256; nothing where there are none."""
    rows = [(name, f"`{digest}`") for name, digest in files.items()]
    return ["## Files", "", *table(("file", "SHA-256"), rows), ""] if rows else []
