"""Who votes for which task and how, and the votes themselves. Ensembles and pseudo-labels both choose here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.ensembling.methods.registry import METHODS, combines_values
from tutti.ensembling.procedure import Ballot, Ensemble, OutOfFold, Procedure, auto_methods, out_of_fold
from tutti.ensembling.select import Selection, top
from tutti.errors import Fault, StudyError, counted
from tutti.records import CheckpointRecord
from tutti.tasks.metrics import score_decided

if TYPE_CHECKING:
    from tutti.tasks.task import Task

_SHOWN = 10  # faults of one kind in one message
_LABELLED = "validation"
_SPLIT = "give both studies the same files and the same `split`, or let one of them vote alone"
_AGAIN = "move the trial's folder out of the bank, so that it has no vote, or start a new study"
_HOW = {
    "auto": "combined in each task by the method that does best there",
    "uniform": "all with the same weight",
    "score": "weighed by their validation scores in the task",
    "best": "of whom the best alone decides",
    "rank": "combined by their ranks",
    "hard": "with one hand each",
    "greedy": "weighed by greedy selection",
    "stacking": "combined by stacking",
}


@dataclass(frozen=True)
class Rule:
    """How an ensemble is made.

    Attributes:
        top: how many members at most; none for no limit.
        by: whether the study's objective ranks them, or each task's own metric.
        within: how much less than the best member they may score; none for no such rule.
        diversity: by what share of the validation rows each must differ from every better one.
        filter: how MLflow was asked for those who may vote at all, to be said on the card; none for all.
        method: a name of ``METHODS``, or ``auto`` for the one that does best on rows that it was not fitted to.
        decision: the likeliest class, or ``offsets`` by class where they win.
        calibration: whether the confidence of pseudo-labels is that of the fitted temperature.
    """

    top: int | None = 5
    by: Literal["objective", "task"] = "objective"
    within: float | None = None
    diversity: float = 0.0
    filter: str | None = None
    method: str = "uniform"
    decision: Literal["argmax", "offsets"] = "argmax"
    calibration: Literal["none", "temperature"] = "none"


@dataclass(frozen=True)
class Member:
    """A checkpoint that votes for one task.

    Attributes:
        key: the trial's key, with its ``number``; of several studies that vote together, ``STUDY/KEY``.
        weight: its share of the vote; the members' weights sum to 1.
        score: its validation score in this task.
        objective: its mean validation score over all tasks of the study.
    """

    key: str
    number: int
    weight: float
    score: float
    objective: float


@dataclass(frozen=True, eq=False)
class Elected:
    """One task's ensemble, fitted to all validation rows, and what it takes to judge it.

    Attributes:
        members: best first, in the order of ``ensemble.voters``.
        ballot: what every checkpoint says about the validation rows.
        keys: of these checkpoints, in the order of the ballot.
        procedure: how the ensemble was chosen.
        single: how the best checkpoint alone would be chosen.
        best: the key of that one.
    """

    members: tuple[Member, ...]
    ensemble: Ensemble
    ballot: Ballot
    keys: tuple[str, ...]
    procedure: Procedure
    single: Procedure
    best: str

    @cached_property
    def held(self) -> OutOfFold:
        """What the ensemble says about the validation rows where each was in no part of the choice."""
        return out_of_fold(self.procedure, self.ballot)

    @property
    def score(self) -> float:
        """The ensemble's on the very rows that it was chosen on, which flatter it."""
        said = self.ensemble.combine(self.ballot.votes[self.ensemble.voters])
        return self.ballot.score(self.ballot.labels, self.ensemble.decide(said))


@dataclass(frozen=True)
class Election:
    """What was chosen.

    Attributes:
        checkpoints: every checkpoint of the bank, the best objective first.
        tasks: per task, its ensemble.
        rule: how the members were chosen and combined, as half a sentence.
        notes: what a reader must know about the choice.
    """

    checkpoints: tuple[CheckpointRecord, ...]
    tasks: Mapping[str, Elected]
    rule: str
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Votes:
    """What the members of one task say about one part.

    Attributes:
        ids: ``(rows,)`` of str.
        members: ``(members, rows, classes)`` float32 probabilities, or ``(members, rows)`` values of a regression.
        said: ``(rows, classes)`` or ``(rows,)`` float32, what the ensemble makes of them.
    """

    ids: np.ndarray
    members: np.ndarray
    said: np.ndarray


def elect(
    *,
    study: str,
    bank: Checkpoints,
    tasks: Sequence[Task],
    validation: Mapping[str, np.ndarray],
    needed: Mapping[str, Sequence[str]],
    rule: Rule,
) -> Election:
    """Chooses the members of each task and fits to the validation rows what combines them.

    Args:
        validation: per task, the ids of its validation rows in their order: ``(rows,)`` of str. No member may speak of
            others, such as rows that it was trained on.
        needed: per task, the parts that its members must have predictions for, beside the validation rows.

    Raises:
        StudyError: where the bank is empty, a checkpoint lacks a score or predictions that are needed or has those of
            other rows or classes, or the method has no use for the values of a regression.
        StorageError: where the bank cannot be read.
    """
    records = bank.records()
    if not records:
        remedy = f"wait until one has, or run `tutti tune --resume --trials +4` on the study file of {study}"
        raise StudyError(Fault(f"the study {study}", "have a finished trial", "none", remedy))
    _raise_some(_useless(tasks, rule.method))
    _raise_some(_without_scores(records, tasks))
    every = {task.name: {record.key for record in records} for task in tasks}
    _raise_some(_without_parts(bank, {task.name: [_LABELLED] for task in tasks}, every))
    if not all(any(np.isfinite(_standing(records, task.name, rule.by))) for task in tasks):
        remedy = "look at the trials' scores with `tutti trials`"
        raise StudyError(Fault(f"the study {study}", "have a trial with a score in every task", "none", remedy))
    remedy = _AGAIN if records[0].key.rpartition("/")[0] in ("", study) else _SPLIT
    _raise_some(_of_another_split(bank, tasks, records[0].key, validation, remedy))
    elected = {task.name: _elected(bank, task, records, rule) for task in tasks}
    voting = {name: {member.key for member in each.members} for name, each in elected.items()}
    _raise_some(_without_parts(bank, needed, voting))
    ranking = top(np.array([record.score for record in records]), len(records))
    could = min(int(np.isfinite(each.procedure.standing).sum()) for each in elected.values())
    short = rule.top is not None and could < rule.top
    asked = f"The recipe asks for {counted(rule.top or 0, 'member')}"
    notes = (f"{asked}; there {'is' if could == 1 else 'are'} only {could}.",) if short else ()
    studies = list(dict.fromkeys(record.key.rpartition("/")[0] for record in records))
    if len(studies) > 1:
        notes = (f"The trials of the studies {' and '.join(studies)} may vote together.", *notes)
    counts = [len(each.members) for each in elected.values()]
    return Election(tuple(records[index] for index in ranking), elected, _in_words(rule, counts), notes)


def votes(bank: Checkpoints, *, task: Task, part: str, elected: Elected) -> Votes:
    """The members' probabilities, or values, for one part, and what the ensemble says.

    Raises:
        StudyError: where a member's classes or rows are not those of the task and of the other members.
        StorageError: where the bank cannot be read.
    """
    ids, _, stacked = _stacked(bank, task, part, [member.key for member in elected.members])
    return Votes(ids, stacked, elected.ensemble.combine(stacked))


def _elected(bank: Checkpoints, task: Task, records: Sequence[CheckpointRecord], rule: Rule) -> Elected:
    _, labels, stacked = _stacked(bank, task, _LABELLED, [record.key for record in records])
    if labels is None:
        raise StudyError(Fault(f"trial {records[0].key}, {task.name}/{_LABELLED}", "have labels", "none", _AGAIN))
    ballot = Ballot(stacked, labels, partial(_score, task.metric, task.outputs))
    every = auto_methods(rows=len(labels), values=task.regression)
    procedure = Procedure(
        selection=Selection(rule.top, rule.within, rule.diversity),
        standing=_standing(records, task.name, rule.by),
        share=1 if rule.by == "task" else 1 / len(records[0].task_scores),
        methods=every if rule.method == "auto" else (rule.method,),
        offsets=rule.decision == "offsets",
    )
    single = Procedure(Selection(top=1), _standing(records, task.name, "task"), share=1, methods=("uniform",))
    ensemble = procedure.fit(ballot)
    members = tuple(
        Member(each.key, each.number, float(weight), each.task_scores[task.name], each.score)
        for each, weight in zip((records[index] for index in ensemble.voters), ensemble.combiner.weights, strict=True)
    )
    best = records[int(top(single.standing, 1)[0])].key
    return Elected(members, ensemble, ballot, tuple(each.key for each in records), procedure, single, best)


def _score(metric: str, classes: int, labels: np.ndarray, decided: np.ndarray) -> float:
    return score_decided(metric, labels=labels, decided=decided, classes=classes)


def _standing(records: Sequence[CheckpointRecord], task: str, by: str) -> np.ndarray:
    """``(checkpoints,)`` float64, what ranks them."""
    return np.array([record.score if by == "objective" else record.task_scores[task] for record in records])


def _stacked(
    bank: Checkpoints, task: Task, part: str, keys: Sequence[str]
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Ids, labels and votes of some checkpoints, once it is sure that they speak of the same rows and classes."""
    first = bank.predictions(keys[0], task.name, part)
    columns = () if task.regression else (task.outputs,)
    stacked = np.empty((len(keys), len(first.ids), *columns), dtype=np.float32)
    for index, key in enumerate(keys):
        said = first if index == 0 else bank.predictions(key, task.name, part)
        what, remedy = f"trial {key}, {task.name}/{part}", _AGAIN
        own = said.values if task.regression else said.probabilities
        if own is None or said.class_names != task.class_names:
            classes = f"hold probabilities of the classes {', '.join(task.class_names)}"
            rule = "hold values of a regression" if task.regression else classes
            raise StudyError(Fault(what, rule, ", ".join(said.class_names) or "none", remedy))
        if not (np.array_equal(said.ids, first.ids) and _equal(said.labels, first.labels)):
            rule = f"hold the rows and labels that trial {keys[0]} holds, in the same order"
            if key.rpartition("/")[0] != keys[0].rpartition("/")[0]:
                remedy = _SPLIT
            raise StudyError(Fault(what, rule, _other_rows(first.ids, said.ids), remedy))
        stacked[index] = own
    return first.ids, first.labels, stacked


def _in_words(rule: Rule, counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    number = f"{least}" if least == most else f"{least} to {most}"
    words = [
        f"the best {number} by " + ("the study's objective" if rule.by == "objective" else "each task's own metric")
    ]
    if rule.within is not None:
        words.append(f"at most {rule.within:g} below the best")
    if rule.diversity:
        words.append(f"each different from all better ones in {rule.diversity:.2%} of the rows or more")
    if rule.filter is not None:
        words.append(f"found with {rule.filter}")
    return ", ".join([*words, _HOW[rule.method]])


def _useless(tasks: Sequence[Task], method: str) -> Iterator[Fault]:
    """A task of values, where the method needs classes."""
    if method != "auto" and not combines_values(method):
        able = [name for name in METHODS if combines_values(name)]
        for task in tasks:
            if task.regression:
                rule, got = "combine what the task's labels are", f"{task.name}, whose labels are numbers"
                yield Fault(
                    f"the method {method}", rule, got, f"name one of {', '.join(['auto', *able])} in the recipe"
                )


def _without_scores(records: Sequence[CheckpointRecord], tasks: Sequence[Task]) -> Iterator[Fault]:
    remedy = f"{_AGAIN} where the tasks have changed"
    for record in records:
        for task in tasks:
            if task.name not in record.task_scores:
                yield Fault(f"trial {record.key}", f"have a validation score for task {task.name}", "none", remedy)


def _without_parts(
    bank: Checkpoints, needed: Mapping[str, Sequence[str]], voting: Mapping[str, set[str]]
) -> Iterator[Fault]:
    remedy = f"{_AGAIN} where the task's files have changed"
    held = {key: bank.parts(key) for key in sorted(set().union(*voting.values()))}
    for key, parts in held.items():
        for task, names in needed.items():
            lacking = [name for name in names if name not in parts.get(task, ())]
            if lacking and key in voting[task]:
                got = f"none for {', '.join(lacking)}"
                yield Fault(f"trial {key}", f"have predictions for every part of task {task}", got, remedy)


def _of_another_split(
    bank: Checkpoints, tasks: Sequence[Task], key: str, validation: Mapping[str, np.ndarray], remedy: str
) -> Iterator[Fault]:
    """A task whose validation rows are not those of one checkpoint; all others are compared with it in ``_stacked``."""
    for task in tasks:
        known, got = validation[task.name], bank.predictions(key, task.name, _LABELLED).ids
        if not np.array_equal(known, got):
            rule = "hold the study's validation rows, in their order"
            yield Fault(f"trial {key}, {task.name}/{_LABELLED}", rule, _other_rows(known, got), remedy)


def _raise_some(faults: Iterator[Fault]) -> None:
    if found := tuple(faults):
        raise StudyError(*found[:_SHOWN])


def _other_rows(known: np.ndarray, got: np.ndarray) -> str:
    shared = len(set(known.tolist()) & set(got.tolist()))
    if shared < max(len(known), len(got)):
        return f"{counted(len(got), 'row')}, {shared} of them the same"
    return "other labels" if np.array_equal(known, got) else "another order"


def _equal(left: np.ndarray | None, right: np.ndarray | None) -> bool:
    return (left is None) == (right is None) and (left is None or right is None or np.array_equal(left, right))
