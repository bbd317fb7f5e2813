"""Pseudo-labels: what an ensemble says about unlabelled rows, as training files of the next study."""

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
from tutti.ensembling.nested import LEAST_JUDGED
from tutti.ensembling.pseudo import Labelling, Opinion, choose, drift, opinion, precision
from tutti.errors import Fault, StudyError
from tutti.files import whole_file, write_whole
from tutti.outputs.folder import CARD, PAGE, hashes, output_folder
from tutti.outputs.members import Elected, Rule, elect, votes
from tutti.outputs.pseudo_pool import PART, Pool, ledger_of
from tutti.outputs.pseudo_report import ClassCoverage, PseudoLabelReport, TaskPseudoLabels
from tutti.tasks.layouts.soft import PROBABILITY, SoftLabels

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.tasks.task import Task


@dataclass(frozen=True, eq=False)
class _Labelled:
    """What one task's ensemble said, and which rows are labelled.

    Attributes:
        rows: ``(chosen,)`` indices of the pool's rows.
        labels: of each chosen row, as it stands in a training file.
        said: ``(chosen, classes)`` probabilities, or ``(chosen,)`` values.
        opinion: of the chosen rows; none of values.
    """

    task: Task
    pool: Pool
    elected: Elected
    rows: np.ndarray
    labels: list[str]
    said: np.ndarray
    opinion: Opinion | None


def write_pseudo_labels(
    *,
    study: str,
    recipe_name: str,
    tasks: Sequence[Task],
    validation: Mapping[str, np.ndarray],
    pools: Mapping[str, Pool],
    bank: Checkpoints,
    rule: Rule,
    labelling: Labelling,
    out: Path,
) -> PseudoLabelReport:
    """Labels the rows that ``labelling`` chooses: one training file for each task, a ledger, and a report of coverage.

    ``TASK<suffix>`` is in the task's own training layout, for ``extra_train`` of the next study; with soft labels it is
    ``TASK.soft.parquet``. ``TASK.ledger.parquet`` has for each of its rows: id, label, confidence, agreement, round,
    members (keys of those with a vote), source_sha256 (of the unlabelled file). The label is the likeliest class,
    whatever the recipe decides by. Values of a regression have no confidence, and get labels where every row does.

    A row with an empty text gets no label, nor does one that a trial has seen with a label. A task gets no file, and
    the report says why, where no row is chosen or a class's share drifts too far. ``out`` is replaced whole.

    Args:
        validation: per task, the ids of its validation rows in their order.
        pools: of each task with unlabelled rows.
        out: a new or empty folder, or an earlier set of pseudo-labels.

    Raises:
        StudyError: where no task has unlabelled rows, the bank does not have what is needed, or ``out`` holds other
            files.
        TaskFileError: where a task's layout cannot hold a row.
        StorageError: where the bank cannot be read or ``out`` cannot be written.
    """
    able = [task for task in tasks if task.name in pools and (labelling.select == "all" or not task.regression)]
    values = [task.name for task in tasks if task.name in pools and task not in able]
    if not able:
        remedy = "name a file of unlabelled rows as `unlabeled:` of a task and run a new study"
        if values:
            remedy = f"set `select: all` in the recipe, or {remedy}"
        got = f"none but {', '.join(values)}, whose labels are numbers" if values else "none"
        raise StudyError(Fault(f"the study {study}", "have a task with unlabelled rows", got, remedy))
    needed = {task.name: [PART] for task in able}
    election = elect(study=study, bank=bank, tasks=able, validation=validation, needed=needed, rule=rule)
    calibrated = rule.calibration == "temperature"
    labelled = [
        _labelled(bank, task, election.tasks[task.name], pools[task.name], labelling, calibrated) for task in able
    ]
    report = PseudoLabelReport(
        study=study,
        recipe=recipe_name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rule=election.rule,
        labelling=labelling,
        tasks=tuple(_task_report(each, labelling, calibrated) for each in labelled),
        passed_over=tuple(task.name for task in tasks if task.name not in pools),
        notes=(
            *election.notes,
            *(_temperature(each) for each in labelled if calibrated and each.opinion is not None),
            *(f"Task {name} was passed over: a value has no confidence." for name in values),
        ),
        files={},
    )
    with output_folder(out) as folder:
        for each, told in zip(labelled, report.tasks, strict=True):
            if told.file is not None:
                _write_labels(each, labelling, folder / told.file)
                _write_ledger(each, folder / ledger_of(each.task.name))
        report = replace(report, files=hashes(folder))
        write_whole(folder / PAGE, report.to_markdown())
        write_whole(folder / CARD, report.to_json())
    return report


def coverage_of(
    bank: Checkpoints, task: Task, elected: Elected, pool: Pool, *, labelling: Labelling, calibrated: bool
) -> TaskPseudoLabels:
    """What ``write_pseudo_labels`` would label of one task, without writing it; raises as that does."""
    return _task_report(_labelled(bank, task, elected, pool, labelling, calibrated), labelling, calibrated)


def _temperature(each: _Labelled) -> str:
    found, rows = each.elected.ensemble.temperature, len(each.elected.ballot.labels)
    return f"Confidence in task {each.task.name} is that at temperature {found:.3g}, fitted to {rows} validation rows."


def _labelled(
    bank: Checkpoints, task: Task, elected: Elected, pool: Pool, labelling: Labelling, calibrated: bool
) -> _Labelled:
    said = votes(bank, task=task, part=PART, elected=elected)
    if said.ids.tolist() != [str(each) for each in pool.rows["id"]]:
        rule = f"be the {len(said.ids)} rows that the study's trials read, in the same order"
        remedy = "restore the file, or run a new study on it"
        raise StudyError(Fault(f"the unlabelled rows of {task.name}", rule, f"{len(pool.rows)} rows, others", remedy))
    able = _with_texts(pool.rows) & ~pool.seen
    if task.regression:
        rows = np.flatnonzero(able)
        return _Labelled(task, pool, elected, rows, [str(value) for value in said.said[rows]], said.said[rows], None)
    sure = elected.ensemble.calibrated(said.said) if calibrated else said.said
    found = opinion(sure, said.members[elected.ensemble.combiner.weights != 0])
    rows = choose(found, labelling, prior=pool.prior, able=able)
    labels = [task.class_names[index] for index in found.classes[rows]]
    return _Labelled(task, pool, elected, rows, labels, sure[rows], found[rows])


def _with_texts(rows: DataFrame) -> np.ndarray:
    """``(rows,)`` bool: whether no text is empty. Such a row teaches nothing, and no training file may hold it."""
    texts = rows[[name for name in ("text", "text_b") if name in rows]]
    return np.array([all(text.strip() for text in row) for row in texts.itertuples(index=False)], dtype=bool)


def _task_report(each: _Labelled, labelling: Labelling, calibrated: bool) -> TaskPseudoLabels:
    task, found = each.task, each.opinion
    coverage: tuple[ClassCoverage, ...] = ()
    mean, apart, worst = None, None, None
    if found is not None:
        coverage = _coverage(each, found, *_judged(each, found, labelling, calibrated))
        if len(each.rows):
            mean = float(found.confidence.mean(dtype=np.float64))
            given = each.said if labelling.labels == "soft" else np.eye(task.outputs)[found.classes]
            apart, index = drift(given.mean(axis=0, dtype=np.float64), each.pool.prior)
            worst = task.class_names[index]
    drifts = apart is not None and labelling.max_drift is not None and abs(apart) > labelling.max_drift
    suffix = ".soft.parquet" if labelling.labels == "soft" and not task.regression else each.pool.suffix
    return TaskPseudoLabels(
        task=task.name,
        unlabelled=len(each.pool.rows),
        seen=int(each.pool.seen.sum()),
        labelled=len(each.rows),
        mean_confidence=mean,
        drift=apart,
        drifting_class=worst,
        file=f"{task.name}{suffix}" if len(each.rows) and not drifts else None,
        coverage=coverage,
        members=each.elected.members,
    )


def _coverage(each: _Labelled, found: Opinion, judged: np.ndarray, right: np.ndarray) -> tuple[ClassCoverage, ...]:
    coverage = []
    for index, name in enumerate(each.task.class_names):
        own = found.confidence[found.classes == index].astype(np.float64)
        coverage.append(
            ClassCoverage(
                label=name,
                rows=len(own),
                share=len(own) / max(len(each.pool.rows), 1),
                mean_confidence=float(own.mean()) if len(own) else None,
                expected_precision=float(right[index] / judged[index]) if judged[index] else None,
                judged_rows=int(judged[index]),
            )
        )
    return tuple(coverage)


def _judged(each: _Labelled, chosen: Opinion, labelling: Labelling, calibrated: bool) -> tuple[np.ndarray, np.ndarray]:
    """By class: the validation rows that would get it, from an ensemble chosen without them, and how many are right."""
    ballot, classes = each.elected.ballot, each.task.outputs
    if len(ballot.labels) < LEAST_JUDGED or not len(each.rows):
        return np.zeros(classes, dtype=np.int64), np.zeros(classes, dtype=np.int64)
    held = each.elected.held
    said = held.calibrated if calibrated else held.probabilities
    assert said is not None
    assert held.agreement is not None
    best = said.argmax(axis=1)
    found = Opinion(best, said[np.arange(len(best)), best], held.agreement)
    return precision(found, ballot.labels, like=chosen, least_agreement=labelling.agreement, classes=classes)


def _write_labels(each: _Labelled, labelling: Labelling, path: Path) -> None:
    frame = each.pool.rows.iloc[each.rows].reset_index(drop=True).assign(label=each.labels)
    if labelling.labels == "soft" and not each.task.regression:
        names = [PROBABILITY + name for name in each.task.class_names]
        frame = frame.assign(**{name: each.said[:, index] for index, name in enumerate(names)})
        SoftLabels(each.task.pair).write(frame, path)
    else:
        each.pool.layout.write(frame, path)


def _write_ledger(each: _Labelled, path: Path) -> None:
    count, found = len(each.rows), each.opinion
    members = [member.key for member in each.elected.members if member.weight]
    nothing = pa.nulls(count, pa.float32())
    columns = {
        "id": pa.array([str(row) for row in each.pool.rows["id"].iloc[each.rows]], pa.string()),
        "label": pa.array(each.labels, pa.string()),
        "confidence": nothing if found is None else pa.array(found.confidence, pa.float32()),
        "agreement": nothing if found is None else pa.array(found.agreement, pa.float32()),
        "round": pa.array(np.full(count, each.pool.round, dtype=np.int32)),
        "members": pa.array([members] * count, pa.list_(pa.string())),
        "source_sha256": pa.array([each.pool.source] * count, pa.string()),
    }
    with whole_file(path) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")
