"""Pseudo-labels: the unlabelled rows that an ensemble is sure of, as training files of the next study."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.ensembling.pseudo import Confident, confident
from tutti.errors import Fault, StudyError
from tutti.files import write_whole
from tutti.outputs.folder import CARD, PAGE, hashes, output_folder
from tutti.outputs.members import Elected, Election, Rule, elect, votes
from tutti.outputs.pseudo_report import ClassCoverage, PseudoLabelReport, TaskPseudoLabels

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.tasks.layouts.protocol import Layout
    from tutti.tasks.task import Task

_PART = "unlabeled"


@dataclass(frozen=True, eq=False)
class _Labelled:
    """What one task's ensemble said, and which rows it is sure of."""

    task: Task
    ids: np.ndarray
    chosen: Confident
    voters: int

    @property
    def labels(self) -> list[str]:
        return [self.task.class_names[index] for index in self.chosen.classes]


def write_pseudo_labels(
    *,
    study: str,
    recipe_name: str,
    tasks: Sequence[Task],
    rows: Mapping[str, DataFrame],
    layouts: Mapping[str, Layout],
    suffixes: Mapping[str, str],
    bank: Checkpoints,
    rule: Rule,
    threshold: float,
    out: Path,
) -> PseudoLabelReport:
    """Writes the rows at or above ``threshold`` as one training file for each task, and a report of coverage.

    ``TASK<suffix>`` is in the task's own training layout, for ``extra_train`` of the next study. Beside it
    ``TASK.confidence.csv`` has a row for each of its rows: id, label, confidence, agreeing members, members (with a
    vote). The label is the likeliest class, whatever the recipe decides by. A task with no row at the threshold gets
    neither, and the report says so; so does a regression, whose values have no confidence. ``out`` is replaced whole.

    Args:
        rows: per task with unlabelled rows, the rows (``id``, ``text``, perhaps ``text_b``) as they were cleaned.
        layouts: per task, how its training file is laid out.
        suffixes: per task, the suffix of that file, such as ``.tsv``.
        threshold: lowest confidence, inclusive.
        out: a new or empty folder, or an earlier set of pseudo-labels.

    Raises:
        StudyError: where no task has unlabelled rows, the bank does not have what is needed, or ``out`` holds other
            files.
        TaskFileError: where a task's layout cannot hold a row.
        StorageError: where the bank cannot be read or ``out`` cannot be written.
    """
    pools = [task for task in tasks if task.name in rows and not task.regression]
    values = [task.name for task in tasks if task.name in rows and task.regression]
    if not pools:
        remedy = "name a file of unlabelled rows as `unlabeled:` of a task and run a new study"
        got = f"none but {', '.join(values)}, whose labels are numbers" if values else "none"
        raise StudyError(Fault(f"the study {study}", "have a task with unlabelled rows", got, remedy))
    needed = {task.name: [_PART] for task in pools}
    election = elect(study=study, bank=bank, tasks=pools, needed=needed, rule=rule)
    calibrated = rule.calibration == "temperature"
    labelled = [
        _labelled(bank, task, election.tasks[task.name], rows[task.name], threshold, calibrated) for task in pools
    ]
    report = PseudoLabelReport(
        study=study,
        recipe=recipe_name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rule=election.rule,
        threshold=threshold,
        tasks=tuple(_task_report(each, election, suffixes[each.task.name]) for each in labelled),
        passed_over=tuple(task.name for task in tasks if task.name not in rows),
        notes=(
            *election.notes,
            *(_temperature(task.name, election.tasks[task.name]) for task in pools if calibrated),
            *(f"Task {name} was passed over: a value has no confidence." for name in values),
        ),
        files={},
    )
    with output_folder(out) as folder:
        for each, said in zip(labelled, report.tasks, strict=True):
            if said.file is not None:
                frame = rows[each.task.name].iloc[each.chosen.rows].reset_index(drop=True).assign(label=each.labels)
                layouts[each.task.name].write(frame, folder / said.file)
                write_whole(folder / f"{each.task.name}.confidence.csv", _confidence_csv(each))
        report = replace(report, files=hashes(folder))
        write_whole(folder / PAGE, report.to_markdown())
        write_whole(folder / CARD, report.to_json())
    return report


def _temperature(task: str, elected: Elected) -> str:
    found, rows = elected.ensemble.temperature, len(elected.ballot.labels)
    return f"Confidence in task {task} is that at temperature {found:.3g}, fitted to {rows} validation rows."


def _labelled(
    bank: Checkpoints, task: Task, elected: Elected, rows: DataFrame, threshold: float, calibrated: bool
) -> _Labelled:
    said = votes(bank, task=task, part=_PART, elected=elected)
    if said.ids.tolist() != [str(each) for each in rows["id"]]:
        rule = f"be the {len(said.ids)} rows that the study's trials read, in the same order"
        remedy = "restore the file, or run a new study on it"
        raise StudyError(Fault(f"the unlabelled rows of {task.name}", rule, f"{len(rows)} rows, others", remedy))
    voters = np.flatnonzero(elected.ensemble.combiner.weights)
    sure = elected.ensemble.calibrated(said.said) if calibrated else said.said
    chosen = _with_texts(confident(sure, said.members[voters], threshold), rows)
    return _Labelled(task, said.ids, chosen, len(voters))


def _with_texts(chosen: Confident, rows: DataFrame) -> Confident:
    """Without the rows that have an empty text: they teach nothing, and no training file may hold them."""
    texts = rows[[name for name in ("text", "text_b") if name in rows]].iloc[chosen.rows]
    kept = np.array([all(text.strip() for text in row) for row in texts.itertuples(index=False)], dtype=bool)
    return Confident(chosen.rows[kept], chosen.classes[kept], chosen.confidence[kept], chosen.agreeing[kept])


def _task_report(each: _Labelled, election: Election, suffix: str) -> TaskPseudoLabels:
    confidence = each.chosen.confidence.astype(np.float64)
    coverage = []
    for index, name in enumerate(each.task.class_names):
        of_class = confidence[each.chosen.classes == index]
        mean = float(of_class.mean()) if len(of_class) else None
        coverage.append(ClassCoverage(name, len(of_class), len(of_class) / max(len(each.ids), 1), mean))
    return TaskPseudoLabels(
        task=each.task.name,
        unlabelled=len(each.ids),
        labelled=len(confidence),
        mean_confidence=float(confidence.mean()) if len(confidence) else None,
        file=f"{each.task.name}{suffix}" if len(confidence) else None,
        coverage=tuple(coverage),
        members=election.tasks[each.task.name].members,
    )


def _confidence_csv(each: _Labelled) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("id", "label", "confidence", "agreeing", "members"))
    chosen = each.chosen
    for row, label, confidence, agreeing in zip(
        chosen.rows, each.labels, chosen.confidence, chosen.agreeing, strict=True
    ):
        writer.writerow((each.ids[row], label, f"{confidence:.6f}", agreeing, each.voters))
    return text.getvalue()
