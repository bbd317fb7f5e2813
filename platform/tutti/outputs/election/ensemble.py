"""From the bank to submissions: combines the members' predictions and writes files and card. Needs no model or GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.ensembling.nested import MIN_TEXTS_NESTED
from tutti.errors import Fault, SubmissionError
from tutti.files import write_whole
from tutti.outputs.election.card import FOLDED, PICTURE, RELIABILITY, Card, Graded, Single
from tutti.outputs.election.grade import grade
from tutti.outputs.election.members import Elected, Election, elect, votes
from tutti.outputs.election.poll import Poll
from tutti.outputs.election.task_card import task_card
from tutti.outputs.folder import output_folder, write_card
from tutti.outputs.pictures import drawn, ensemble_png, reliability_png
from tutti.outputs.submission.formats.glue import lacking
from tutti.outputs.submission.formats.protocol import Item
from tutti.outputs.submission.submission import Formats, TestIds, check, zipped
from tutti.tasks.layouts.tags import piece_of
from tutti.tasks.metrics.answers import squad_scores
from tutti.tasks.objective import study_score

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.tasks.task import Task

Files = dict[str, dict[str, bytes]]
Tagging = Callable[[Sequence[Sequence[str]]], tuple[str, bytes]]
"""The tags of each row to the suffix and the content of a file."""

_ZIP = "submission.zip"


@dataclass(frozen=True, eq=False)
class Voted:
    """An ensemble and its submissions, before anything is written.

    Attributes:
        card: without files.
        items: by task and test part, the rows of the submission by the names of its columns.
        files: the submission files, by part and name.
        texts: of tasks of texts, what was written with its log-probability, by part and file name.
    """

    card: Card
    items: Mapping[str, Mapping[str, list[dict[str, Any]]]]
    files: Files
    texts: Files

    def write(self, out: Path) -> Card:
        """Writes submission files, a zip of them, ``card.json``, ``card.md`` and pictures into ``out``.

        The files of part ``test`` go to ``out`` itself, those of ``test-NAME`` to its subfolder ``NAME``, each with its
        own ``submission.zip``. ``out`` is replaced as a whole.

        Args:
            out: a new or empty folder, or the folder of an earlier ensemble.

        Returns:
            The card with the hashes of the files.

        Raises:
            StudyError: if ``out`` holds other files.
            StorageError: if it cannot be written.
        """
        with output_folder(out, kind="ensemble") as folder:
            for part, rendered in self.files.items():
                place = folder / part.removeprefix("test").removeprefix("-")
                for name, content in {**rendered, _ZIP: zipped(rendered), **self.texts.get(part, {})}.items():
                    write_whole(place / name, content)
            pictures = {PICTURE: partial(ensemble_png, self.card)}
            if calibrations := {task.task: task.calibration for task in self.card.tasks if task.calibration}:
                pictures[RELIABILITY] = partial(reliability_png, calibrations)
            for name, png in drawn(pictures).items():
                write_whole(folder / name, png)
            return write_card(folder, self.card)


def vote(
    poll: Poll,
    *,
    test_ids: TestIds,
    submission: Formats,
    answers: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    prompts: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    tagged: Mapping[str, Mapping[str, Tagging]] | None = None,
    notes: Sequence[str] = (),
    recipe_keys: Mapping[str, Any] | None = None,
) -> Voted:
    """Lets the checkpoints of a bank vote, and checks what they say of the test rows.

    Args:
        test_ids: by task and test part, the ids of the test file, in its order. A task may have none.
        submission: the layouts of the files.
        answers: by task and test part, labels of the test rows if the user has them, in order: ``(rows,)`` class
            indices or values. The card then includes the scores on them.
        prompts: by task of texts and test part, the prompts in order.
        tagged: by task of tags and test part, what writes the test file with tags.
        notes: remarks for the card.
        recipe_keys: as of ``Card``.

    Raises:
        StudyError: if the bank lacks what is needed.
        SubmissionError: if the predicted rows are not those of a test file, or a format cannot hold them.
        StorageError: if the bank cannot be read.
    """
    tasks, bank, validation = poll.tasks, poll.bank, poll.validation
    submission.check(test_ids, tasks)
    election = elect(poll, needed={task.name: list(test_ids.get(task.name, {})) for task in tasks})
    items, files = _submissions(bank, tasks, election, test_ids, submission)
    card = card_of(
        poll,
        election,
        rows={name: {part: len(ids) for part, ids in parts.items()} for name, parts in test_ids.items()},
        notes=(
            *notes,
            *(f"Task {task.name} has no test file." for task in tasks if not test_ids.get(task.name)),
            *(note for task in tasks for note in answers_note(task, election.tasks[task.name], validation[task.name])),
            *(note for task in tasks for part in test_ids.get(task.name, {}) for note in submission.notes(task, part)),
            *(
                f"{_ZIP} lacks {', '.join(left)}: gluebenchmark.com takes a zip only with all of its files."
                for own in files.values()
                if (left := lacking(own))
            ),
        ),
        graded=tuple(
            grade(bank, task, part, election.tasks[task.name], labels)
            for task in tasks
            for part, labels in (answers or {}).get(task.name, {}).items()
        ),
    )
    texts: Files = {}
    for task in tasks:
        for part, inputs in (prompts or {}).get(task.name, {}).items():
            place, _ = submission.place(task, part)
            content = written_texts(bank, task, part, election.tasks[task.name], inputs)
            texts.setdefault(place, {})[f"{task.name}.predictions.jsonl"] = content
        if task.kind.spans == "one":
            for part, (ids, labels) in items.get(task.name, {}).items():
                place, _ = submission.place(task, part)
                pieces = dict(zip(ids, submission.filled(task, part, labels), strict=True))
                content = json.dumps(pieces, ensure_ascii=False, indent=1).encode()
                texts.setdefault(place, {})[f"{task.name}.answers.json"] = content
        for part, write in (tagged or {}).get(task.name, {}).items():
            place, _ = submission.place(task, part)
            elected = election.tasks[task.name]
            decided = elected.ensemble.decide(votes(bank, task=task, part=part, elected=elected).combined)
            suffix, content = write([json.loads(cell) for cell in task.kind.cells(decided, task.names)])
            texts.setdefault(place, {})[f"{task.name}.tagged{suffix}"] = content
    shown = {
        task.name: {part: submission.shown(task, part, *each) for part, each in items[task.name].items()}
        for task in tasks
        if task.name in items
    }
    return Voted(replace(card, recipe_keys=recipe_keys or {}), shown, files, texts)


def card_of(
    poll: Poll,
    election: Election,
    *,
    rows: Mapping[str, Mapping[str, int]],
    notes: Sequence[str] = (),
    graded: tuple[Graded, ...] = (),
) -> Card:
    """The card of an election, without any files.

    Args:
        rows: by task and test part, the number of rows.
        notes: remarks added to those of the election.
    """
    cards = tuple(task_card(task, election.tasks[task.name], rows=rows.get(task.name, {})) for task in poll.tasks)
    caveat = (FOLDED,) if poll.folded and any(card.calibration for card in cards) else ()
    return Card(
        study=poll.study,
        recipe=poll.recipe_name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rule=election.rule,
        tasks=cards,
        singles=_singles(election, poll.tasks),
        notes=(*caveat, *election.notes, *notes),
        files={},
        overlap=election.overlap,
        graded=graded,
    )


def _singles(election: Election, tasks: Sequence[Task]) -> tuple[Single, ...]:
    """Every trial alone, best objective over these tasks first: its own study may have other tasks, or weigh them.

    Where trials were scored otherwise than the vote is, as by perplexity, they have their scores in the vote's metric.
    """
    elected = {task.name: election.tasks[task.name] for task in tasks if task.scored_otherwise}
    as_voted = {name: dict(zip(each.keys, each.ballot.scores.tolist(), strict=True)) for name, each in elected.items()}
    singles = []
    for record in election.checkpoints:
        scores = {name: as_voted.get(name, {}).get(record.key, score) for name, score in record.task_scores.items()}
        objective = study_score(scores, tasks) if all(task.name in scores for task in tasks) else None
        singles.append(Single(record.key, record.number, objective, scores))
    return tuple(sorted(singles, key=lambda single: np.inf if single.objective is None else -single.objective))


def _submissions(
    bank: Checkpoints, tasks: Sequence[Task], election: Election, test_ids: TestIds, submission: Formats
) -> tuple[dict[str, dict[str, tuple[list[str], Sequence[Item]]]], Files]:
    """Ids and items by task and part, and file contents by part and name. All faults are raised together."""
    items: dict[str, dict[str, tuple[list[str], Sequence[Item]]]] = {}
    files: Files = {}
    faults: list[Fault] = []
    for task in tasks:
        for part, expected in test_ids.get(task.name, {}).items():
            elected = election.tasks[task.name]
            predicted = votes(bank, task=task, part=part, elected=elected)
            ids, ensemble = predicted.ids.tolist(), elected.ensemble
            decided, outputs = ensemble.decide(predicted.combined), ensemble.calibrated(predicted.combined)
            labels = submission.items(task, part, decided=decided, outputs=outputs)
            items.setdefault(task.name, {})[part] = (ids, labels)
            try:
                check(task, part=part, expected=[str(each) for each in expected], ids=ids, labels=labels)
                place, name = submission.place(task, part)
                if name in files.setdefault(place, {}):
                    what, remedy = f"the submission of {task.name}, {part}", "give one of them another name or format"
                    faults.append(Fault(what, "have a file of its own", f"{name} twice", remedy))
                files[place][name] = submission.render(task, part, ids, labels)
            except SubmissionError as error:
                faults.extend(error.faults)
    if faults:
        raise SubmissionError(*faults)
    return items, files


def written_texts(bank: Checkpoints, task: Task, part: str, elected: Elected, prompts: Sequence[str]) -> bytes:
    """JSON Lines: id, input, prediction, log_probability (the mean of the members who write this text; null where the
    bank has none) and agreement (their share).

    Raises:
        StudyError, StorageError: as ``votes`` does.
    """
    voted = votes(bank, task=task, part=part, elected=elected)
    kept = [bank.predictions(member.key, task.name, part).log_probabilities for member in elected.members]
    scores = np.array([np.full(len(voted.ids), np.nan) if own is None else own for own in kept])
    same = voted.members == voted.combined
    lines = []
    for row, (name, prompt) in enumerate(zip(voted.ids.tolist(), prompts, strict=True)):
        own = scores[same[:, row], row]
        score = None if not len(own) or np.isnan(own).any() else round(float(own.mean()), 4)
        item = {"id": name, "input": prompt, "prediction": voted.combined[row].strip(), "log_probability": score}
        item["agreement"] = round(float(same[:, row].mean()), 4)
        lines.append(json.dumps(item, ensure_ascii=False) + "\n")
    return "".join(lines).encode()


def answers_note(task: Task, elected: Elected, rows: DataFrame) -> Iterator[str]:
    """A sentence with exact match and F1 of a task's answers to its validation rows, chosen on other rows.

    A row's right answers are those of its file, or the piece that its label marks.

    Args:
        rows: the validation rows.
    """
    if task.kind.spans != "one" or elected.ballot.texts < MIN_TEXTS_NESTED:
        return
    texts = rows["text"].tolist()
    given, labelled = (
        [piece_of(text, task.unit, cell) for text, cell in zip(texts, task.kind.cells(each, task.names), strict=True)]
        for each in (elected.held_out.decisions[0], elected.ballot.labels)
    )
    kept = rows["answers"].tolist() if "answers" in rows else [None] * len(rows)
    right = [json.loads(each) if isinstance(each, str) else [piece] for each, piece in zip(kept, labelled, strict=True)]
    exact, f1 = squad_scores(given, right)
    yield f"By the rules of SQuAD, answers of {task.name} have an exact match of {exact:.4f} and an F1 of {f1:.4f}."
