"""Checks of the checkpoints that may vote, and what is said of several studies'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.ensembling.methods.registry import METHODS
from tutti.errors import Fault, StudyError, counted
from tutti.outputs.formatting import called
from tutti.records import CheckpointRecord

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.tasks.task import Task

LABELLED = "validation"
SECOND_STAGE = "second stage"
"""Begins the source of guests that are second-stage models."""
SPLIT = "give both studies the same files and the same `split`, or let one of them vote alone"
AGAIN = "move the trial's folder out of the bank, so that it has no vote, or start a new study"
_SHOWN = 10  # faults of one kind that one message lists


def unsuitable_tasks(tasks: Sequence[Task], method: str) -> Iterator[Fault]:
    """A fault for each task whose predictions the method cannot combine."""
    if method == "auto":
        return
    for task in tasks:
        if task.kind.generative:
            able, what = [name for name, entry in METHODS.items() if entry.texts], "texts"
        elif not task.kind.probabilistic:
            able, what = [name for name, entry in METHODS.items() if entry.values], "numbers"
        else:
            continue
        if method not in able:
            rule, got = "combine what the task's labels are", f"{task.name}, whose labels are {what}"
            yield Fault(f"the method {method}", rule, got, f"name one of {', '.join(['auto', *able])} in the recipe")


def owner_of(key: str) -> str:
    """The study of a checkpoint; empty if only one votes."""
    return key.rpartition("/")[0]


def _tasks_by_study(records: Sequence[CheckpointRecord]) -> dict[str, set[str]]:
    tasks: dict[str, set[str]] = {}
    for record in records:
        tasks.setdefault(owner_of(record.key), set()).update(record.task_scores)
    return tasks


def several_studies(records: Sequence[CheckpointRecord], tasks: Sequence[Task]) -> Iterator[str]:
    """Notes on which studies vote, if there are several, and on those that lack some of the tasks."""
    shared = {
        study: [task.name for task in tasks if task.name in known] for study, known in _tasks_by_study(records).items()
    }
    voting = [study for study, names in shared.items() if names]
    if len(voting) > 1:
        yield f"The trials of the studies {' and '.join(voting)} may vote together."
        for study in voting:
            if len(shared[study]) < len(tasks):
                yield f"Those of {study} may vote in {' and '.join(shared[study])} alone."


def second_stages(records: Sequence[CheckpointRecord], voting: Mapping[str, set[str]]) -> Iterator[str]:
    """A note on voters that have learnt from the others' predictions of validation rows."""
    found = [
        record.key
        for record in records
        for task, keys in voting.items()
        if record.key in keys and f"{task}: {SECOND_STAGE}" in (record.source or "")
    ]
    if found:
        yield (
            f"The second stage ({', '.join(dict.fromkeys(found))}) has learnt from validation rows in folds of its "
            "own, so the estimate of the vote is slightly optimistic."
        )


def without_scores(
    records: Sequence[CheckpointRecord], tasks: Sequence[Task], *, study: str, by: str
) -> Iterator[Fault]:
    """A fault for each trial and task without a score. Ranked by task, all trials of another study may lack one."""
    remedy = f"{AGAIN} where the tasks have changed"
    tasks_by_study = _tasks_by_study(records)
    for record in records:
        due, owner = [task.name for task in tasks], owner_of(record.key)
        if by == "task" and owner not in ("", study):
            due = [name for name in due if name in tasks_by_study[owner]]
        if by == "task" and record.source is not None:
            continue
        for name in due:
            if name not in record.task_scores:
                guest = "import its predictions of that task, or set `members: {by: task}` or `{guests: false}`"
                own = remedy if record.source is None else guest
                yield Fault(called(record.key), f"have a validation score for task {name}", "none", own)


def without_parts(
    bank: Checkpoints, needed: Mapping[str, Sequence[str]], voting: Mapping[str, set[str]], study: str
) -> Iterator[Fault]:
    parts_by_key = {key: bank.parts(key) for key in sorted(set().union(*voting.values()))}
    guests = {record.key for record in bank.records() if record.source is not None}
    for key, parts in parts_by_key.items():
        for task, names in needed.items():
            missing = [name for name in names if name not in parts.get(task, ())]
            if missing and key in voting[task]:
                got, owner = f"none for {', '.join(missing)}", owner_of(key)
                remedy = f"{AGAIN} where the task's files have changed"
                if all(name.startswith("test") for name in missing):  # of a set that was added since
                    remedy = f"run `tutti predict {study}`, which makes them from the trial's weights"
                if key in guests:
                    remedy = "add them with `tutti bank import` or `tutti second`, or set `members: {guests: false}`"
                if owner not in ("", study):
                    remedy = f"leave {owner} out, or run a study like it with the files of {study}"
                yield Fault(called(key), f"have predictions for every part of task {task}", got, remedy)


def of_another_split(
    bank: Checkpoints, firsts: Mapping[str, str], validation: Mapping[str, DataFrame], study: str
) -> Iterator[Fault]:
    """A fault for each task whose validation rows are not those of its first candidate; ``firsts`` are their keys.

    ``stacked_votes`` compares all other candidates with that one.
    """
    for task, key in firsts.items():
        expected = validation[task]["id"].to_numpy(dtype=np.str_)
        got = bank.predictions(key, task, LABELLED).ids
        if not np.array_equal(expected, got):
            rule = "hold the study's validation rows, in their order"
            remedy = AGAIN if owner_of(key) in ("", study) else SPLIT
            yield Fault(f"{called(key)}, {task}/{LABELLED}", rule, other_rows(expected, got), remedy)


def raise_first(faults: Iterator[Fault]) -> None:
    if first := tuple(islice(faults, _SHOWN)):
        raise StudyError(*first)


def other_rows(expected: np.ndarray, got: np.ndarray) -> str:
    """In words, how rows that should be the same differ."""
    shared = len(set(expected.tolist()) & set(got.tolist()))
    if shared < max(len(expected), len(got)):
        return f"{counted(len(got), 'row')}, {shared} of them the same"
    return "other labels" if np.array_equal(expected, got) else "another order"
