"""An ensemble's card: its members with their weights, its scores, and the files made from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tutti.config.objective_weights import listed_if_unequal
from tutti.ensembling.nested import MIN_TEXTS_NESTED, Estimate
from tutti.errors import counted
from tutti.outputs.formatting import (
    counted_voters,
    estimate_text,
    files_section,
    harmless,
    members_table,
    number,
    page,
    signed,
    table,
    verdict,
)

if TYPE_CHECKING:
    from tutti.ensembling.calibrate import Bin
    from tutti.outputs.election.members import Member

CAVEAT = (
    "The vote and the best trial alone are scored on rows that had no part in choosing members, weights or offsets "
    "(five folds, 95 % interval). Each trial's best epoch was chosen on all of these rows, and the search was steered "
    "by them: that part flatters every score here."
)
FOLDED = (
    "With folds a validation row has the probabilities of one fold's model, and a new row the mean of all folds, which "
    "is less sure: for new rows the temperature is too high, and calibration errors are larger than those shown."
)
PICTURE = "ensemble.png"
RELIABILITY = "reliability.png"


@dataclass(frozen=True)
class Calibration:
    """How far an ensemble's confidence is from its accuracy, measured out of fold.

    Attributes:
        temperature: fitted to the ensemble's probabilities on all validation rows.
        error_before: expected calibration error of the combined votes, from 0 to 1.
        error_after: the same after temperature scaling.
        before: accuracy by bin of confidence, for the combined votes.
        after: the same after temperature scaling.
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
        method: how votes were combined; for ``auto``, the method it chose.
        members: best first.
        score: nested estimate of the ensemble's score, on rows that had no part in choosing it; none if there are too
            few rows.
        single: the same for the best trial of the task, chosen in the same way.
        gain: ``score`` minus ``single``, with the interval of the paired difference.
        offsets: the parameters of decisions by name: of each class, what is added to log-probabilities before the
            argmax; of each label, its threshold; of ordered classes, the cut points between them. None without.
        calibration: none for kinds without probabilities and if there are too few rows.
        rows: number of rows by part, including the validation rows.
        weight: of the task in the study's score.
        decision: in words, how decisions are made.
        higher_is_better: whether the metric is better where it is higher; scores are negated where it is not.
        points: whether it is a share, of which hundredths are points.
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
    weight: float = 1.0
    decision: str = "the likeliest"
    higher_is_better: bool = True
    points: bool = True

    @property
    def verdict(self) -> str | None:
        """Whether the vote is better than the best trial, in one sentence; none if there are too few rows."""
        rows = counted(self.rows["validation"], "validation row")
        return None if self.gain is None else verdict(self.gain, rows=rows, points=self.points)


@dataclass(frozen=True)
class Single:
    """One trial alone.

    Attributes:
        objective: the mean of its scores over the tasks of the ensemble, weighted as in the study's; none if it lacks
            one.
        task_scores: its validation score by task.
    """

    key: str
    number: int
    objective: float | None
    task_scores: Mapping[str, float]


@dataclass(frozen=True)
class Graded:
    """Scores on a test part whose labels the user has.

    Attributes:
        score: the ensemble's score.
        single: the score of the trial with the best validation score in the task; none if it has no predictions for
            these rows, which only members must have.
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
        rule: in words, how the members were chosen and weighted.
        singles: every trial of the bank, best objective first, member or not; those without an objective last.
        files: SHA-256 of every file beside the card, by path.
        overlap: of the tasks' validation rows, as in ``Estimate.mean``.
        graded: the scores on test parts whose labels were given.
        recipe_keys: what the recipe says, by which its ensemble can be chosen again, and ``others``: the folders of
            further studies that vote.
    """

    study: str
    recipe: str
    created: str
    rule: str
    tasks: tuple[TaskCard, ...]
    singles: tuple[Single, ...]
    notes: tuple[str, ...]
    files: Mapping[str, str]
    overlap: Sequence[Sequence[float]]
    kind: str = field(default="ensemble", init=False)
    graded: tuple[Graded, ...] = ()
    recipe_keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def objective(self) -> Estimate | None:
        """The mean over tasks of the ensemble's scores; none if a task has no score."""
        return self._mean([task.score for task in self.tasks])

    @property
    def single(self) -> Estimate | None:
        """The mean over tasks of the best trial's score, the best trial of each task."""
        return self._mean([task.single for task in self.tasks])

    @property
    def gain(self) -> Estimate | None:
        """The mean over tasks of the ensemble's gain over the best trial."""
        return self._mean([task.gain for task in self.tasks])

    @property
    def verdict(self) -> str | None:
        """Whether the vote is better than the best trial of each task, in one sentence; none without a ``gain``."""
        if len(self.tasks) == 1 or self.gain is None:
            return self.tasks[0].verdict if len(self.tasks) == 1 else None
        total = sum(task.rows["validation"] for task in self.tasks)
        rows = f"{counted(total, 'validation row')} of {len(self.tasks)} tasks"
        points = all(task.points for task in self.tasks)
        return verdict(self.gain, rows=rows, points=points, than="the best trial of each task")

    @property
    def footnote(self) -> str:
        """The best score that a trial has on its own rows, which does not compare with the others."""
        best = next((single for single in self.singles if single.objective is not None), None)
        if best is None:
            return "Scores of single trials are those on the rows that chose their epoch."
        return (
            f"On the rows that chose its epoch the best trial, {best.key}, scores {number(best.objective)}: that is "
            "flattered, and not to be compared with the estimates."
        )

    def _mean(self, estimates: Sequence[Estimate | None]) -> Estimate | None:
        present = [estimate for estimate in estimates if estimate is not None]
        if not present or len(present) < len(estimates):
            return None
        return Estimate.mean(present, self.overlap, [task.weight for task in self.tasks])

    @property
    def remarks(self) -> tuple[str, ...]:
        """Caveats that belong beside the numbers, one sentence each."""
        few = [f"{task.task} ({task.rows['validation']} in all)" for task in self.tasks if task.score is None]
        unscored = "Too few validation rows of different texts or groups to score on"
        unscored += f", fewer than {MIN_TEXTS_NESTED}: {', '.join(few)}."
        alone = (
            f"The best trial in {graded.task} does not vote and has no predictions for {graded.part}: "
            "it has no score there."
            for graded in self.graded
            if graded.single is None
        )
        caveat = (CAVEAT,) if len(few) < len(self.tasks) else ()
        weights = listed_if_unequal({task.task: task.weight for task in self.tasks})
        weighted = (f"The study's score and each mean over tasks weigh the tasks: {weights}.",) if weights else ()
        negated = [task.metric for task in self.tasks if not task.higher_is_better]
        listed = " and ".join(dict.fromkeys(negated))
        sign = (f"Scores are shown so that higher is better: {listed} with a minus sign.",) if negated else ()
        notes = (*((unscored,) if few else ()), *sign, *self._below_single(), *self.notes)
        return (*caveat, *weighted, *notes, *alone)

    def _below_single(self) -> tuple[str, ...]:
        if self.gain is None or self.gain.high >= 0:  # an interval that contains 0 says nothing
            return ()
        better = "The best trial of each task is better than the vote"
        return (f"{better}: a recipe with `members: {{top: 1, by: task}}` submits these instead.",)

    def to_json(self) -> str:
        means = {"objective": self.objective, "single": self.single, "gain": self.gain}
        documents = {name: None if mean is None else asdict(mean) for name, mean in means.items()}
        said = {"verdict": self.verdict, "remarks": self.remarks}
        return json.dumps({**asdict(self), **documents, **said}, ensure_ascii=False, indent=2) + "\n"

    def to_markdown(self) -> str:
        """The card as a Markdown page."""
        voters = counted_voters([each.key for each in self.singles])
        reliability = f"![How right the ensemble is where it is how sure, before and at the temperature]({RELIABILITY})"
        return page(
            f"# Ensemble `{self.recipe}` of study `{self.study}`",
            f"Made {self.created}. Members: {self.rule}, out of {voters}.",
            f"**{self.verdict}**" if self.verdict else "",
            *(f"> {harmless(note)}" for note in self.remarks),
            "## The vote and the best trial",
            f"![Validation score of every single trial and of the ensemble]({PICTURE})",
            self._comparison(),
            *self._graded(),
            "## Every single trial, on the rows that chose its epoch",
            self._singles(),
            f"● marks a trial that votes for the task. {self.footnote}",
            "## How votes are combined",
            self._tasks(),
            reliability if any(task.calibration for task in self.tasks) else "",
            "## Members",
            members_table([(task.task, task.members) for task in self.tasks]),
            *files_section(self.files),
        )

    def _comparison(self) -> str:
        head = ("task", "metric", "best trial", "vote", "gain")
        rows = [
            (task.task, task.metric, estimate_text(task.single), f"**{estimate_text(task.score)}**", signed(task.gain))
            for task in self.tasks
        ]
        if len(self.tasks) > 1:
            means = (estimate_text(self.single), f"**{estimate_text(self.objective)}**", signed(self.gain))
            rows.append(("mean", "", *means))
        return table(head, rows)

    def _singles(self) -> str:
        head = ("trial", "objective", *(f"{task.task} ({task.metric})" for task in self.tasks))
        rows = [
            (trial.key, number(trial.objective), *(self._cell(trial, task) for task in self.tasks))
            for trial in self.singles
        ]
        return table(head, rows)

    def _graded(self) -> tuple[str, ...]:
        head = ("task", "rows", "metric", "labelled rows", "best trial", "vote")
        rows = [
            (graded.task, graded.part, graded.metric, f"{graded.rows:,}", number(graded.single), f"{graded.score:.4f}")
            for graded in self.graded
        ]
        return ("## On labelled test rows", table(head, rows)) if rows else ()

    def _tasks(self) -> str:
        head = ("task", "method", "decision", "temperature", "calibration error before", "and at the temperature")
        rows = []
        for task in self.tasks:
            calibration: tuple[str, ...] = ("–", "–", "–")
            if known := task.calibration:
                calibration = tuple(
                    f"{value:.3f}" for value in (known.temperature, known.error_before, known.error_after)
                )
            rows.append((task.task, task.method, task.decision, *calibration))
        return table(head, rows)

    @staticmethod
    def _cell(single: Single, task: TaskCard) -> str:
        votes = any(member.key == single.key and member.weight for member in task.members)
        return f"{number(single.task_scores.get(task.task))}{' ●' if votes else ''}"
