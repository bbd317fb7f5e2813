"""From the bank to submissions: what the members say together, the files, and the card. Needs no model and no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.errors import Fault, SubmissionError
from tutti.files import write_whole
from tutti.outputs.card import PICTURE, RELIABILITY, Card, Graded, Single
from tutti.outputs.folder import CARD, PAGE, hashes, output_folder
from tutti.outputs.formats.glue import lacking
from tutti.outputs.grade import grade
from tutti.outputs.members import Election, Rule, elect, votes
from tutti.outputs.pictures import ensemble_png, reliability_png
from tutti.outputs.submission import Layouts, TestIds, check, zipped
from tutti.outputs.task_card import task_card

if TYPE_CHECKING:
    from tutti.tasks.task import Task

Files = dict[str, dict[str, bytes]]

_ZIP = "submission.zip"


def write_ensemble(
    *,
    study: str,
    recipe_name: str,
    tasks: Sequence[Task],
    validation: Mapping[str, np.ndarray],
    test_ids: TestIds,
    bank: Checkpoints,
    rule: Rule,
    submission: Layouts,
    out: Path,
    answers: Mapping[str, Mapping[str, np.ndarray]] | None = None,
) -> Card:
    """Writes submission files, a zip of them, ``card.json``, ``card.md`` and a picture into ``out``.

    The files of part ``test`` stand in ``out`` itself, those of ``test-NAME`` in its folder ``NAME``, each with a
    ``submission.zip`` of its own. ``out`` is replaced whole, and only once everything was checked.

    Args:
        validation: per task, the ids of its validation rows in their order.
        test_ids: per task and test part, the ids of the test file in its order. A task may have none.
        submission: how the files are laid out.
        out: a new or empty folder, or an earlier ensemble's.
        answers: per task and test part, the labels of its rows in their order, where one has them: ``(rows,)`` class
            indices, or values. The card then says what the ensemble is worth there.

    Raises:
        StudyError: where the bank does not have what is needed, or ``out`` holds other files.
        SubmissionError: where the predicted rows are not those of a test file, or a format cannot hold them.
        StorageError: where the bank cannot be read or ``out`` cannot be written.
    """
    needed = {task.name: list(test_ids.get(task.name, {})) for task in tasks}
    submission.check(test_ids)
    election = elect(study=study, bank=bank, tasks=tasks, validation=validation, needed=needed, rule=rule)
    files = _submissions(bank, tasks, election, test_ids, submission)
    card = card_of(
        study=study,
        recipe_name=recipe_name,
        tasks=tasks,
        election=election,
        rows={name: {part: len(ids) for part, ids in parts.items()} for name, parts in test_ids.items()},
        notes=(
            *(f"Task {task.name} has no test file." for task in tasks if not test_ids.get(task.name)),
            *(_lacking(files[part]) for part in files if lacking(files[part])),
        ),
        graded=tuple(
            grade(bank, task, part, election.tasks[task.name], labels)
            for task in tasks
            for part, labels in (answers or {}).get(task.name, {}).items()
        ),
    )
    with output_folder(out) as folder:
        for part, rendered in files.items():
            place = folder / part.removeprefix("test").removeprefix("-")
            for name, content in {**rendered, _ZIP: zipped(rendered)}.items():
                write_whole(place / name, content)
        write_whole(folder / PICTURE, ensemble_png(card))
        if calibrations := {task.task: task.calibration for task in card.tasks if task.calibration}:
            write_whole(folder / RELIABILITY, reliability_png(calibrations))
        card = replace(card, files=hashes(folder))
        write_whole(folder / PAGE, card.to_markdown())
        write_whole(folder / CARD, card.to_json())
    return card


def card_of(
    *,
    study: str,
    recipe_name: str,
    tasks: Sequence[Task],
    election: Election,
    rows: Mapping[str, Mapping[str, int]],
    notes: Sequence[str] = (),
    graded: tuple[Graded, ...] = (),
) -> Card:
    """The card of an election, of no file yet.

    Args:
        rows: per task, the rows of each test part.
        notes: said beside those of the election.
    """
    return Card(
        study=study,
        recipe=recipe_name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rule=election.rule,
        tasks=tuple(task_card(task, election.tasks[task.name], rows=rows.get(task.name, {})) for task in tasks),
        singles=tuple(Single(one.key, one.number, one.score, dict(one.task_scores)) for one in election.checkpoints),
        notes=(*election.notes, *notes),
        files={},
        graded=graded,
    )


def _labels(task: Task, decided: np.ndarray) -> list[str] | list[float]:
    """The class of each row, or its value with as many digits as float32 has."""
    if task.regression:
        return [float(str(value)) for value in decided]
    return [task.class_names[index] for index in decided]


def _lacking(files: Mapping[str, bytes]) -> str:
    return f"{_ZIP} lacks {', '.join(lacking(files))}: gluebenchmark.com takes a zip only with all of its files."


def _submissions(
    bank: Checkpoints, tasks: Sequence[Task], election: Election, test_ids: TestIds, submission: Layouts
) -> Files:
    """Part to file name to content. The faults of all tasks and parts are raised together."""
    files: Files = {}
    faults: list[Fault] = []
    for task in tasks:
        for part, expected in test_ids.get(task.name, {}).items():
            elected = election.tasks[task.name]
            said = votes(bank, task=task, part=part, elected=elected)
            ids, labels = said.ids.tolist(), _labels(task, elected.ensemble.decide(said.said))
            try:
                check(task, part=part, expected=[str(each) for each in expected], ids=ids, labels=labels)
                place, name = submission.place(task, part)
                if name in files.setdefault(place, {}):
                    what, remedy = f"the submission of {task.name}, {part}", "give one of them another name or format"
                    faults.append(Fault(what, "have a file of its own", f"{name} twice", remedy))
                files[place][name] = submission.of(task, part).render(ids, labels)
            except SubmissionError as error:
                faults.extend(error.faults)
    if faults:
        raise SubmissionError(*faults)
    return files
