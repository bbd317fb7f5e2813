"""Who votes for which task, and the votes themselves. Ensembles and pseudo-labels both choose here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tutti.bank.bank import Bank
from tutti.ensembling.combine import average
from tutti.ensembling.methods.score import by_score
from tutti.ensembling.select import top as best
from tutti.errors import Fault, StudyError, counted
from tutti.records import CheckpointRecord

if TYPE_CHECKING:
    from tutti.tasks.task import Task

By = Literal["objective", "task"]
Weights = Literal["uniform", "score"]

_SHOWN = 10  # faults of one kind in one message


@dataclass(frozen=True)
class Member:
    """A checkpoint that votes for one task.

    Attributes:
        key: the trial's key, with its ``number``.
        weight: its share of the vote; the members' weights sum to 1.
        score: its validation score in this task.
        objective: its mean validation score over all tasks of the study.
    """

    key: str
    number: int
    weight: float
    score: float
    objective: float


@dataclass(frozen=True)
class Election:
    """What was chosen.

    Attributes:
        checkpoints: every checkpoint of the bank, the best objective first.
        members: per task, its members, best first.
        rule: how they were chosen and weighed, as half a sentence.
        notes: what a reader must know about the choice.
    """

    checkpoints: tuple[CheckpointRecord, ...]
    members: Mapping[str, tuple[Member, ...]]
    rule: str
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Votes:
    """What the members of one task say about one part.

    Attributes:
        ids: ``(rows,)`` of str.
        labels: ``(rows,)`` int64 (float32 for a regression), or none where the part has no labels.
        members: ``(members, rows, classes)`` float32 probabilities, or ``(members, rows)`` values of a regression.
        weights: ``(members,)`` float64.
        mean: ``(rows, classes)`` or ``(rows,)`` float32, the weighted mean.
    """

    ids: np.ndarray
    labels: np.ndarray | None
    members: np.ndarray
    weights: np.ndarray
    mean: np.ndarray


def elect(
    *, study: str, bank: Bank, needed: Mapping[str, Sequence[str]], top: int, by: By, weights: Weights
) -> Election:
    """Chooses and weighs the members of each task.

    Args:
        needed: per task, the parts that its members must have predictions for.
        top: how many members at most.
        by: whether the study's objective ranks them, once for all tasks, or each task's own metric.
        weights: the same for all, or in proportion to the member's validation score in the task.

    Raises:
        StudyError: where the bank is empty, or a checkpoint lacks a score or predictions that are needed.
        StorageError: where the bank cannot be read.
    """
    records = bank.records()
    if not records:
        remedy = f"wait until a trial has finished, or run `tutti tune` on the study file of {study}"
        raise StudyError(Fault(f"the study {study}", "have a finished trial", "none", remedy))
    _raise_some(_without_scores(records, needed))
    members = {task: _members(records, task, top=top, by=by, weights=weights) for task in needed}
    if not all(members.values()):
        remedy = "look at the trials' scores with `tutti trials`"
        raise StudyError(Fault(f"the study {study}", "have a trial with a score in every task", "none", remedy))
    _raise_some(_without_parts(bank, needed, members))
    ranking = best(np.array([record.score for record in records]), len(records))
    chosen = min(map(len, members.values()))
    notes = [f"The recipe asks for {counted(top, 'member')}; the study has only {chosen}."] if chosen < top else []
    ranked = "the study's objective" if by == "objective" else "each task's own metric"
    weighed = "all with the same weight" if weights == "uniform" else "weighed by their validation scores in the task"
    rule = f"the best {chosen} by {ranked}, {weighed}"
    return Election(tuple(records[index] for index in ranking), members, rule, tuple(notes))


def votes(bank: Bank, *, task: Task, part: str, members: Sequence[Member]) -> Votes:
    """The members' probabilities, or values, for one part, and their weighted mean.

    Raises:
        StudyError: where a member's classes or rows are not those of the task and of the other members.
        StorageError: where the bank cannot be read.
    """
    first = bank.predictions(members[0].key, task.name, part)
    columns = () if task.regression else (task.outputs,)
    stacked = np.empty((len(members), len(first.ids), *columns), dtype=np.float32)
    for index, member in enumerate(members):
        said = first if index == 0 else bank.predictions(member.key, task.name, part)
        what, remedy = f"trial {member.key}, {task.name}/{part}", "run the trial again, or start a new study"
        own = said.values if task.regression else said.probabilities
        if own is None or said.class_names != task.class_names:
            classes = f"hold probabilities of the classes {', '.join(task.class_names)}"
            rule = "hold values of a regression" if task.regression else classes
            raise StudyError(Fault(what, rule, ", ".join(said.class_names) or "none", remedy))
        if not (np.array_equal(said.ids, first.ids) and _equal(said.labels, first.labels)):
            rule = f"hold the rows and labels that trial {members[0].key} holds, in the same order"
            raise StudyError(Fault(what, rule, "others", remedy))
        stacked[index] = own
    weights = np.array([member.weight for member in members])
    return Votes(first.ids, first.labels, stacked, weights, average(stacked, weights))


def _members(
    records: Sequence[CheckpointRecord], task: str, *, top: int, by: By, weights: Weights
) -> tuple[Member, ...]:
    own = np.array([record.task_scores[task] for record in records])
    chosen = best(np.array([record.score for record in records]) if by == "objective" else own, top)
    shares = np.full(len(chosen), 1 / len(chosen)) if weights == "uniform" else by_score(own[chosen])
    return tuple(
        Member(records[index].key, records[index].number, float(share), float(own[index]), records[index].score)
        for index, share in zip(chosen, shares, strict=True)
    )


def _without_scores(records: Sequence[CheckpointRecord], needed: Mapping[str, Sequence[str]]) -> Iterator[Fault]:
    remedy = "run the trial again, or start a new study where the tasks have changed"
    for record in records:
        for task in needed:
            if task not in record.task_scores:
                yield Fault(f"trial {record.key}", f"have a validation score for task {task}", "none", remedy)


def _without_parts(
    bank: Bank, needed: Mapping[str, Sequence[str]], members: Mapping[str, Sequence[Member]]
) -> Iterator[Fault]:
    remedy = "run the trial again, or start a new study where the task's files have changed"
    held = {key: bank.parts(key) for key in sorted({each.key for group in members.values() for each in group})}
    for key, parts in held.items():
        for task, names in needed.items():
            lacking = [name for name in names if name not in parts.get(task, ())]
            if lacking and any(member.key == key for member in members[task]):
                got = f"none for {', '.join(lacking)}"
                yield Fault(f"trial {key}", f"have predictions for every part of task {task}", got, remedy)


def _raise_some(faults: Iterator[Fault]) -> None:
    if found := tuple(faults):
        raise StudyError(*found[:_SHOWN])


def _equal(left: np.ndarray | None, right: np.ndarray | None) -> bool:
    return (left is None) == (right is None) and (left is None or right is None or np.array_equal(left, right))
