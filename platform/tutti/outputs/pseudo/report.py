"""The report on a set of pseudo-labels: coverage and expected precision, as JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field

from tutti.config.recipe import PseudoLabels
from tutti.errors import counted
from tutti.outputs.election.members import Member
from tutti.outputs.formatting import files_section, harmless, members_table, number, page, table

FOLDED = (
    "With folds a validation row has the probabilities of one fold's model, and an unlabelled row the mean of all "
    "folds, which is less sure: fewer rows than expected reach a threshold, and the expected precision is rather "
    "too low."
)
EXPECTED = (
    "Expected precision is the share of right labels among the validation rows that would get the label with this "
    "confidence and had no part in choosing the members, with its 95 % interval and their number."
)
_PARTS = "Words and spans with a confidence of at least {threshold:g} are labelled, in rows that have any"
_SELECT_SENTENCES = {
    "threshold": "A row is labelled where the ensemble's confidence is at least {threshold:g}",
    "quantile": "Of each class the surest {share:.4g} of the eligible rows are labelled",
    "prior": "The surest rows of each class are labelled, {share:.4g} of the eligible, with training's class shares",
    "all": "Every row is labelled",
    "parts": _PARTS,
}
_SURE = "as sure as its least certain label, given or not"
_SELECT_SENTENCES_OF_LABELS = {
    "threshold": f"A row is labelled where it is {_SURE}, to at least {{threshold:g}}",
    "quantile": f"The surest {{share:.4g}} of the eligible rows are labelled; a row is {_SURE}",
    "prior": f"The surest {{share:.4g}} of the eligible rows are labelled; a row is {_SURE}",
    "all": "Every row is labelled",
    "parts": _PARTS,
}


def which_rows(labelling: PseudoLabels, *, exclusive: Collection[bool]) -> str:
    """Which rows are labelled, as a sentence without a full stop.

    Args:
        exclusive: ``Kind.exclusive`` of the tasks that are labelled: rows of several labels have no class.
    """
    each = [(_SELECT_SENTENCES, "the label")] if True in exclusive or not exclusive else []
    if False in exclusive:
        each.append((_SELECT_SENTENCES_OF_LABELS, "the same labels"))
    sentences = []
    for sentence, label in each:
        sentences.append(sentence[labelling.select].format(threshold=labelling.threshold, share=labelling.share))
        if labelling.agreement:
            sentences[-1] += f", if at least {labelling.agreement:.4g} of the members say {label} by themselves"
    if len(sentences) == 2 and labelling.select != "all":
        sentences[1] = f"Of tasks with several labels: {sentences[1]}"
    return ". ".join(dict.fromkeys(sentences))


@dataclass(frozen=True)
class ClassCoverage:
    """The rows that got one label.

    Attributes:
        share: the share of all unlabelled rows of the task.
        expected_precision: the share of ``judged_rows`` that are labelled correctly; none if there are no such rows.
        judged_rows: the number of validation rows of different texts that the ensemble, chosen without them, would
            give this label with the same confidence.
    """

    label: str
    rows: int
    share: float
    mean_confidence: float | None
    expected_precision: float | None
    judged_rows: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the expected precision (Wilson 1927); none without judged rows."""
        if self.expected_precision is None:
            return None
        share, rows, squared = self.expected_precision, self.judged_rows, 1.959964**2
        middle = (share + squared / (2 * rows)) / (1 + squared / rows)
        spread = (share * (1 - share) / rows + squared / (4 * rows**2)) ** 0.5 * 1.959964 / (1 + squared / rows)
        return max(middle - spread, 0.0), min(middle + spread, 1.0)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the class's row in a table."""
        expected = "–"
        if interval := self.interval:
            low, high = interval
            expected = f"{self.expected_precision:.3f} ({low:.2f} to {high:.2f}) of {counted(self.judged_rows, 'row')}"
        return self.label, f"{self.rows:,}", f"{self.share:.1%}", number(self.mean_confidence), expected


@dataclass(frozen=True)
class TaskPseudoLabels:
    """One task's pseudo-labels.

    Attributes:
        unlabelled: the number of rows in the pool.
        seen: the number of rows left out because the trials have seen them with a label.
        eligible: the number of other rows, without those that lack a text.
        labelled: the number of rows that were chosen.
        mean_confidence: the mean over the chosen rows; none if there are none.
        drift: the difference of largest magnitude between a class's share among the labels and among training rows.
        drifting_class: the class with that difference.
        file: the training file; none if no row was chosen or the drift is too large.
        soft: whether that has a probability for each class.
        coverage: by class or label, in the task's order; empty for a regression.
        exclusive: whether exactly one class is right for a row; false for several labels.
    """

    task: str
    unlabelled: int
    seen: int
    eligible: int
    labelled: int
    mean_confidence: float | None
    drift: float | None
    drifting_class: str | None
    file: str | None
    soft: bool
    coverage: tuple[ClassCoverage, ...]
    members: tuple[Member, ...]
    exclusive: bool = True

    @property
    def written(self) -> int:
        """The number of rows in the training file; 0 if no file was written."""
        return self.labelled if self.file is not None else 0

    @property
    def given(self) -> int:
        """The number of labels that the chosen rows got; of classes one each."""
        return sum(own.rows for own in self.coverage)

    @property
    def judged_labels(self) -> int:
        """The number of labels whose class has an expected precision."""
        return sum(own.rows for own in self.coverage if own.expected_precision is not None)

    @property
    def expected_precision(self) -> float | None:
        """The expected precision of the ``judged_labels``: the mean over their classes, weighted by rows."""
        correct = (own.expected_precision * own.rows for own in self.coverage if own.expected_precision is not None)
        return sum(correct) / self.judged_labels if self.judged_labels else None


@dataclass(frozen=True)
class PseudoLabelReport:
    """The whole set.

    Attributes:
        created: UTC, ISO 8601.
        rule: in words, how the members were chosen and weighted.
        labelling: the settings that select and label rows.
        passed_over: the tasks without unlabelled rows.
        files: SHA-256 of every file beside the report, by path.
    """

    study: str
    recipe: str
    created: str
    rule: str
    labelling: PseudoLabels
    tasks: tuple[TaskPseudoLabels, ...]
    passed_over: tuple[str, ...]
    notes: tuple[str, ...]
    files: Mapping[str, str]
    kind: str = field(default="pseudo-labels", init=False)

    @property
    def which_rows(self) -> str:
        """Which rows are labelled, as a sentence without a full stop."""
        return which_rows(self.labelling, exclusive={task.exclusive for task in self.tasks})

    @property
    def remarks(self) -> tuple[str, ...]:
        """Caveats that belong beside the numbers, one sentence each: missing files, skipped tasks, few members."""
        return (
            *(self._refusal(task) for task in self.tasks if task.file is None),
            *(
                f"Left out of task {task.task}: {counted(task.seen, 'row')}, seen with a label by the trials."
                for task in self.tasks
                if task.seen
            ),
            *(f"Task {name} has no unlabelled rows and was passed over." for name in self.passed_over),
            *self.notes,
        )

    def _refusal(self, labels: TaskPseudoLabels) -> str:
        """Why no file was written for a task, and what to do about it."""
        labelling, task = self.labelling, labels.task
        no_file = "no file was written for it"
        if labels.labelled:
            assert labels.drift is not None
            assert labelling.max_drift is not None
            fitting = "`select: prior`" if labels.exclusive else "another `select` or `share`"
            if labels.exclusive and labelling.select == "prior":  # a class may have too few eligible rows
                fitting = "a smaller `share`" + (" or `agreement`" if labelling.agreement else "")
            side = "above" if labels.drift > 0 else "below"
            class_has = f"Among the labels of task {task} the class {labels.drifting_class} has"
            label_has = f"Among the labelled rows of task {task} those with the label {labels.drifting_class} have"
            return (
                f"{class_has if labels.exclusive else label_has} a share that is "
                f"{abs(labels.drift) * 100:.2f} points {side} that among the training "
                f"rows, and max_drift allows {labelling.max_drift * 100:g}: {no_file}. Set {fitting} in the "
                f"recipe, or a larger max_drift where the unlabelled rows are known to "
                f"{'be of other classes' if labels.exclusive else 'have other labels'}."
            )
        if labels.seen == labels.unlabelled:
            return f"The trials have seen each row of task {task} with a label: {no_file}. Name rows that are new."
        if not labels.eligible:
            return (
                f"The rows of task {task} that the trials have not seen have no text: {no_file}. Name rows with text."
            )
        if labelling.select == "threshold" and not labelling.agreement:
            return (
                f"No row of task {task} reached {labelling.threshold:g}: {no_file}. Set a lower threshold, "
                "`calibration: temperature` where it is not set, or `select: quantile` in the recipe, or train better "
                "members."
            )
        relax_selection = {"threshold": "lower the threshold", "parts": "lower the threshold", "all": ""}.get(
            labelling.select, "raise `share`"
        )
        remedies = [way for way in ("lower `agreement`" if labelling.agreement else "", relax_selection) if way]
        return f"No row of task {task} was chosen: {no_file}. In the recipe, {' or '.join(remedies)}."

    def to_json(self) -> str:
        document = {**asdict(self), "labelling": self.labelling.model_dump(), "remarks": self.remarks}
        return json.dumps(document, ensure_ascii=False, indent=2) + "\n"

    def to_markdown(self) -> str:
        """The report as a Markdown page."""
        blocks = [
            f"# Pseudo-labels of study `{self.study}`, recipe `{self.recipe}`",
            f"Made {self.created}. Members: {self.rule}. {self.which_rows}. Labels are {self.labelling.labels}.",
            *(f"> {harmless(remark)}" for remark in self.remarks),
        ]
        for task in self.tasks:
            share = f"{task.labelled / max(task.unlabelled, 1):.1%}"
            of_labels = f"{task.labelled:,} of {task.unlabelled:,} rows ({share})"
            blocks.append(f"## {task.task}")
            if task.coverage:
                columns = ("label", "rows", "share of unlabelled rows", "mean confidence", "expected precision")
                blocks.append(f"{of_labels}, mean confidence {number(task.mean_confidence)}. {EXPECTED}")
                blocks.append(table(columns, [own.cells for own in task.coverage]))
            else:
                blocks.append(f"{of_labels}; the label is the ensemble's value.")
            if task.file is not None:
                soft = ", labels: soft" if task.soft else ""
                blocks.append(f"As training rows of the next study: `extra_train: [{{path: {task.file}{soft}}}]`")
        members = members_table([(task.task, task.members) for task in self.tasks])
        return page(*blocks, "## Members", members, *files_section(self.files))
