"""Answers that are pieces of a text, as texts: scored as SQuAD does it, and written as its script reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tutti.ensembling.nested import MIN_TEXTS_NESTED
from tutti.outputs.election.members import Elected
from tutti.tasks.layouts.tags import piece_of
from tutti.tasks.metrics.answers import squad_scores

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.tasks.task import Task


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
