"""Pseudo-labels: an ensemble's labels of unlabelled rows, written as training files for the next study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutti.bank.electorate import Checkpoints
from tutti.config.recipe import PseudoLabels
from tutti.data.clean import row_texts
from tutti.ensembling.nested import MIN_TEXTS, MIN_TEXTS_NESTED
from tutti.ensembling.pseudo import Opinion, agrees, choose, drift, opinion, precision
from tutti.errors import Fault, StudyError
from tutti.files import whole_file
from tutti.outputs.election.members import Elected, elect, votes
from tutti.outputs.election.poll import Poll
from tutti.outputs.folder import output_folder, write_card
from tutti.outputs.pseudo.pool import PART, Pool, keep_earlier, ledger_of
from tutti.outputs.pseudo.report import FOLDED, ClassCoverage, PseudoLabelReport, TaskPseudoLabels
from tutti.tasks.kinds.entities import UNKNOWN, sure_parts
from tutti.tasks.kinds.probabilities import known
from tutti.tasks.kinds.protocol import Kind
from tutti.tasks.layouts.soft import PROBABILITY, SUFFIX, SoftLabels
from tutti.tasks.layouts.table import SUFFIXES

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.tasks.task import Task


@dataclass(frozen=True, eq=False)
class _Labelled:
    """The rows of one task that are labelled, with their labels.

    Attributes:
        eligible: the number of rows with texts that no trial has seen.
        rows: ``(chosen,)`` indices into the pool's rows.
        decided: ``(chosen, ...)`` decisions, as of the task's kind.
        predictions: ``(chosen, ...)`` outputs.
        opinion: class, confidence and agreement of the chosen rows; none for kinds without.
        agreement: ``(chosen,)`` float32, of texts the share of members who write this very text; None for other kinds.
    """

    task: Task
    pool: Pool
    elected: Elected
    eligible: int
    rows: np.ndarray
    decided: np.ndarray
    predictions: np.ndarray
    opinion: Opinion | None
    agreement: np.ndarray | None = None

    def frame(self) -> DataFrame:
        """The labelled rows, with their labels as in a file."""
        cells = self.task.kind.cells(self.decided, self.task.names)
        return self.pool.rows.iloc[self.rows].reset_index(drop=True).assign(label=cells)


@dataclass(frozen=True, eq=False)
class PseudoLabelling:
    """The labels of all tasks, before anything is written.

    Attributes:
        report: without files.
    """

    report: PseudoLabelReport
    _labelled: Sequence[_Labelled]
    _pools: Mapping[str, Pool]

    def rows(self, task: str) -> DataFrame:
        """The labelled rows of a task: id, text, text_b (pairs), label, and for classes and labels confidence."""
        labelled = next(each for each in self._labelled if each.task.name == task)
        frame = labelled.frame()
        return frame if labelled.opinion is None else frame.assign(confidence=labelled.opinion.confidence)

    def write(self, out: Path) -> PseudoLabelReport:
        """Writes a training file and a ledger by task, and the report.

        ``TASK<suffix>`` is in the task's own training layout, for ``extra_train`` of the next study; with soft labels
        it is ``TASK.soft.parquet``. ``TASK.ledger.parquet`` has for each of its rows: id, label, confidence, agreement,
        round, members (keys of those with a weight), source_sha256 (of the unlabelled file). If no row is chosen or a
        class's share drifts too far, a task gets no file, and the report says why. ``out`` is replaced as a whole,
        except that a task that gets no file keeps its earlier one, since a study may name it. If no task gets a file
        and there are earlier ones, the report is only returned.

        Args:
            out: a new or empty folder, or the folder of earlier pseudo-labels.

        Raises:
            StudyError: if ``out`` holds other files.
            StorageError: if it cannot be written.
        """
        report = self.report
        if not any(each.file for each in report.tasks) and any(out.glob(ledger_of("*"))):
            return replace(report, notes=(*report.notes, f"{out} keeps the labels of an earlier run."))
        with output_folder(out, kind="pseudo-labels") as folder:
            for each, task_report in zip(self._labelled, report.tasks, strict=True):
                if task_report.file is not None:
                    _write_labels(each, report.labelling, folder / task_report.file)
                    _write_ledger(each, folder / ledger_of(each.task.name))
            suffixes = {SUFFIX, *SUFFIXES, *(pool.suffix for pool in self._pools.values())}
            notes = tuple(
                f"Task {name} keeps its labels of an earlier run." for name in keep_earlier(out, folder, suffixes)
            )
            return write_card(folder, replace(report, notes=(*report.notes, *notes)))


def label(poll: Poll, *, pools: Mapping[str, Pool], labelling: PseudoLabels) -> PseudoLabelling:
    """Labels the rows that ``labelling`` selects.

    The label is the most probable class, whatever the recipe's decision rule, or each label from the vote's threshold
    on. Numbers have no confidence: their rows are labelled only if all rows are. Of texts the agreement counts, and as
    the confidence too. Rows with an empty text and rows that a trial has seen with a label are left out.

    Args:
        pools: by task with unlabelled rows.

    Raises:
        StudyError: if no task has unlabelled rows, or the bank lacks what is needed.
        StorageError: if the bank cannot be read.
    """
    study, tasks, bank = poll.study, poll.tasks, poll.bank
    labellable = [
        task
        for task in tasks
        if task.name in pools and (labelling.select == "all" or task.kind.probabilistic or task.kind.generative)
        if not task.kind.comparative  # values of texts are no pairs
    ]
    numbers = [task.name for task in tasks if task.name in pools and task not in labellable]
    compared = [task.name for task in tasks if task.kind.comparative]
    if labelling.labels == "soft" and (tagged := [task.name for task in labellable if task.kind.sequential]):
        fitting = f"be hard with tasks of tags, whose files have a tag for each word: {', '.join(tagged)}"
        raise StudyError(Fault("pseudo_labels.labels", fitting, "soft", "set it to hard"))
    if labelling.select == "parts" and (whole := [each.name for each in labellable if not each.kind.sequential]):
        fitting = f"be of tasks with tags alone: {', '.join(whole)} has none"
        raise StudyError(Fault("pseudo_labels.select", fitting, "parts", "set another, such as threshold"))
    if not labellable:
        remedy = "name a file of unlabelled rows as `unlabeled:` of a task and run a new study"
        if {*numbers} - {*compared}:
            remedy = f"set `select: all` in the recipe, or {remedy}"
        what = "pairs, which values of texts are not" if {*numbers} <= {*compared} else "numbers"
        got = f"none but {', '.join(numbers)}, whose labels are {what}" if numbers else "none"
        raise StudyError(Fault(f"the study {study}", "have a task with unlabelled rows", got, remedy))
    needed = {task.name: [PART] for task in labellable}
    election = elect(poll, needed=needed, wanted={*needed})
    calibrated = poll.rule.calibration == "temperature"
    labelled = [
        _labelled(bank, task, election.tasks[task.name], pools[task.name], labelling, calibrated) for task in labellable
    ]
    report = PseudoLabelReport(
        study=study,
        recipe=poll.recipe_name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rule=election.rule,
        labelling=labelling,
        tasks=tuple(_task_report(each, labelling, calibrated) for each in labelled),
        passed_over=tuple(task.name for task in tasks if task.name not in pools),
        notes=(
            *((FOLDED,) if poll.folded and any(each.opinion is not None for each in labelled) else ()),
            *election.notes,
            *(_temperature_note(each) for each in labelled if calibrated and each.opinion is not None),
            *(f"Task {name} was passed over: a value has no confidence." for name in numbers),
        ),
        files={},
    )
    return PseudoLabelling(report, labelled, pools)


def coverage_of(
    bank: Checkpoints, task: Task, elected: Elected, pool: Pool, *, labelling: PseudoLabels, calibrated: bool
) -> TaskPseudoLabels:
    """The report on what ``label`` would label in one task; raises as that does."""
    return _task_report(_labelled(bank, task, elected, pool, labelling, calibrated), labelling, calibrated)


def _temperature_note(labelled: _Labelled) -> str:
    task, value, texts = labelled.task.name, labelled.elected.ensemble.temperature, labelled.elected.ballot.texts
    if texts < MIN_TEXTS:
        return (
            f"Task {task} has too few validation rows with different texts for a temperature: {texts} of {MIN_TEXTS}."
        )
    return (
        f"Confidence in task {task} is that at temperature {value:.3g}, fitted to {texts} validation rows with "
        "different texts."
    )


def can_label(elected: Elected, labelling: PseudoLabels, *, calibrated: bool) -> bool:
    """Whether there are enough validation rows for the temperature of soft labels, if they shall have one."""
    return not (calibrated and labelling.labels == "soft" and elected.ballot.texts < MIN_TEXTS)


def _labelled(
    bank: Checkpoints, task: Task, elected: Elected, pool: Pool, labelling: PseudoLabels, calibrated: bool
) -> _Labelled:
    voted = votes(bank, task=task, part=PART, elected=elected)
    if voted.ids.tolist() != [str(each) for each in pool.rows["id"]]:
        rule = f"be the {len(voted.ids)} rows that the study's trials read, in the same order"
        remedy = "restore the study's folder `data`, or run a new study"
        raise StudyError(Fault(f"the unlabelled rows of {task.name}", rule, f"{len(pool.rows)} rows, others", remedy))
    filled = [all(text.strip() for text in texts) for texts in row_texts(pool.rows)]  # as a training file requires
    eligible = np.array(filled, dtype=bool) & (~pool.seen | labelling.known_rows)
    kind = task.kind
    if not kind.probabilistic:
        agreement = None
        chosen_rows = eligible
        if kind.generative:
            voices = voted.members[elected.ensemble.combiner.weights != 0]
            agreement = (voices == voted.combined).mean(axis=0, dtype=np.float32)
            said = np.array([bool(text.strip()) for text in voted.combined], dtype=bool)  # others teach nothing
            chosen_rows = eligible & said & agrees(agreement, labelling)
        rows = np.flatnonzero(chosen_rows)
        values = voted.combined[rows]
        decided = elected.ensemble.decide(values)
        agreement = None if agreement is None else agreement[rows]
        return _Labelled(task, pool, elected, int(eligible.sum()), rows, decided, values, None, agreement)
    if not can_label(elected, labelling, calibrated=calibrated):
        rule = f"have at least {MIN_TEXTS} different texts for the temperature of soft labels"
        remedy = "set `labels: hard` or `calibration: none` in the recipe"
        raise StudyError(Fault(f"the validation rows of {task.name}", rule, str(elected.ballot.texts), remedy))
    ensemble, decided = elected.ensemble, elected.ensemble.label(voted.combined)
    probabilities = ensemble.calibrated(voted.combined) if calibrated else voted.combined
    voting = ensemble.combiner.weights != 0
    by_members = elected.ballot.decided_alone(voted.members[voting], ensemble.voters[voting])
    opinions = opinion(kind, probabilities, decided, by_members)
    if labelling.select == "parts":
        decided, opinions = _parts(kind, probabilities, decided, labelling)
        eligible = eligible & (decided >= (kind.spans != "none")).any(axis=1)
    competes = kind.exclusive and not kind.exchangeable  # as labels do not, for rows
    prior = pool.prior if competes else np.ones(1)
    rows = choose(opinions, labelling, prior=prior, able=eligible)
    eligible_rows = int(eligible.sum())
    return _Labelled(task, pool, elected, eligible_rows, rows, decided[rows], probabilities[rows], opinions[rows])


def _parts(
    kind: Kind, probabilities: np.ndarray, decided: np.ndarray, labelling: PseudoLabels
) -> tuple[np.ndarray, Opinion]:
    """The tags that are sure enough, the others unknown, and how sure the least certain of them is."""
    kept = sure_parts(probabilities, decided, labelling.threshold, marks=kind.spans != "none")
    known_alone = np.where((kept == UNKNOWN)[..., None], np.nan, probabilities)
    return kept, opinion(kind, known_alone, kept, kept[None])


def _task_report(labelled: _Labelled, labelling: PseudoLabels, calibrated: bool) -> TaskPseudoLabels:
    task, chosen = labelled.task, labelled.opinion
    coverage: tuple[ClassCoverage, ...] = ()
    mean_confidence, largest_drift, drifting_class = None, None, None
    if chosen is not None:
        coverage = _coverage(labelled, chosen, *_judged(labelled, chosen, labelling, calibrated))
        if len(labelled.rows):
            mean_confidence = float(chosen.confidence.mean(dtype=np.float64))
            shares = task.kind.held(labelled.decided, task.outputs).mean(axis=0)
            if labelling.labels == "soft":
                shares = labelled.predictions.mean(axis=0, dtype=np.float64)
            if not task.kind.exchangeable and labelling.select != "parts":  # a place means nothing from row to row
                largest_drift, index = drift(shares, labelled.pool.prior)
                drifting_class = task.names[index]
    limit = labelling.max_drift
    drifts = largest_drift is not None and limit is not None and abs(largest_drift) > limit
    soft = labelling.labels == "soft" and task.kind.probabilistic
    return TaskPseudoLabels(
        task=task.name,
        unlabelled=len(labelled.pool.rows),
        seen=0 if labelling.known_rows else int(labelled.pool.seen.sum()),
        eligible=labelled.eligible,
        labelled=len(labelled.rows),
        mean_confidence=mean_confidence,
        drift=largest_drift,
        drifting_class=drifting_class,
        file=f"{task.name}{SUFFIX if soft else labelled.pool.suffix}" if len(labelled.rows) and not drifts else None,
        soft=soft,
        coverage=coverage,
        members=labelled.elected.members,
        exclusive=task.kind.exclusive or not task.kind.probabilistic,
    )


def _coverage(
    labelled: _Labelled, chosen: Opinion, judged: np.ndarray, correct: np.ndarray
) -> tuple[ClassCoverage, ...]:
    """By class; ``judged`` and ``correct`` are those of ``_judged``."""
    coverage = []
    held = labelled.task.kind.held(labelled.decided, labelled.task.outputs)
    for index, name in enumerate(labelled.task.names):
        own = chosen.confidence[held[:, index]].astype(np.float64)
        coverage.append(
            ClassCoverage(
                label=name,
                rows=len(own),
                share=len(own) / max(len(labelled.pool.rows), 1),
                mean_confidence=float(own.mean()) if len(own) else None,
                expected_precision=float(correct[index] / judged[index]) if judged[index] else None,
                judged_rows=int(judged[index]),
            )
        )
    return tuple(coverage)


def _judged(
    labelled: _Labelled, chosen: Opinion, labelling: PseudoLabels, calibrated: bool
) -> tuple[np.ndarray, np.ndarray]:
    """``(outputs,)`` int64 twice: the validation rows that would get each label, and how many of them have it.

    Their predictions are out of fold: from ensembles that were chosen without them. Of rows with equal texts, whose
    predictions are alike, the first counts.
    """
    ballot, kind, outputs = labelled.elected.ballot, labelled.task.kind, labelled.task.outputs
    if ballot.texts < MIN_TEXTS_NESTED or not len(labelled.rows):
        return np.zeros(outputs, dtype=np.int64), np.zeros(outputs, dtype=np.int64)
    held_out = labelled.elected.held_out
    probabilities = held_out.calibrated if calibrated else held_out.probabilities
    assert probabilities is not None
    assert held_out.agreement is not None
    opinions = opinion(kind, probabilities, held_out.labelled, held_out.labelled[None])
    opinions, given = replace(opinions, agreement=held_out.agreement), held_out.labelled
    if labelling.select == "parts":
        given, opinions = _parts(kind, probabilities, given, labelling)
    decided, labels = (kind.held(each, outputs) for each in (given, ballot.labels))
    decided = decided & known(kind, ballot.labels)
    first = ballot.first_of_texts(np.arange(len(ballot.labels)))
    least = labelling.agreement
    return precision(opinions[first], decided[first], labels[first], like=chosen, least_agreement=least)


def _write_labels(labelled: _Labelled, labelling: PseudoLabels, path: Path) -> None:
    frame = labelled.frame()
    if labelling.labels == "soft" and labelled.task.kind.probabilistic:
        names = [PROBABILITY + name for name in labelled.task.names]
        frame = frame.assign(**{name: labelled.predictions[:, index] for index, name in enumerate(names)})
        task, kind = labelled.task, labelled.task.kind
        SoftLabels(task.pair or task.orders, kind.exclusive, kind.exchangeable).write(frame, path)
    else:
        labelled.pool.layout.write(frame, path)


def _write_ledger(labelled: _Labelled, path: Path) -> None:
    count, chosen = len(labelled.rows), labelled.opinion
    agreement = labelled.agreement if chosen is None else chosen.agreement
    members = [member.key for member in labelled.elected.members if member.weight]
    nulls = pa.nulls(count, pa.float32())  # a regression has no confidence
    columns = {
        "id": pa.array([str(row) for row in labelled.pool.rows["id"].iloc[labelled.rows]], pa.string()),
        "label": pa.array(labelled.frame()["label"], pa.string()),
        "confidence": nulls if chosen is None else pa.array(chosen.confidence, pa.float32()),
        "agreement": nulls if agreement is None else pa.array(agreement, pa.float32()),
        "round": pa.array(np.full(count, labelled.pool.round, dtype=np.int32)),
        "members": pa.array([members] * count, pa.list_(pa.string())),
        "source_sha256": pa.array([labelled.pool.source] * count, pa.string()),
    }
    with whole_file(path) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")
