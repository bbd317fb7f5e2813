"""Elects the members of each task's ensemble and reads their votes, for ensembles and pseudo-labels alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.data.clean import text_groups_of
from tutti.ensembling.methods.registry import METHODS, combines_values
from tutti.ensembling.nested import overlap_of
from tutti.ensembling.procedure import Ballot, Ensemble, OutOfFold, Procedure, auto_methods, out_of_fold
from tutti.ensembling.select import Selection, top
from tutti.errors import Fault, StudyError, counted
from tutti.records import CheckpointRecord
from tutti.tasks.metrics import is_correlation, score_decided

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.tasks.task import Task

_SHOWN = 10  # faults of one kind that one message lists
_LABELLED = "validation"
_SPLIT = "give both studies the same files and the same `split`, or let one of them vote alone"
_AGAIN = "move the trial's folder out of the bank, so that it has no vote, or start a new study"
_METHOD_PHRASES = {
    "auto": "combined in each task by stacking, for numbers by their mean, or by a method that is clearly better there",
    "uniform": "all with the same weight",
    "score": "weighed by their validation scores in the task",
    "rank": "combined by their ranks",
    "hard": "with one vote each",
    "greedy": "weighed by greedy selection",
    "stacking": "combined by stacking",
}


@dataclass(frozen=True)
class Rule:
    """How an ensemble is chosen and combined.

    Attributes:
        top: the maximum number of members; none for no limit.
        by: what ranks the candidates: the study's objective or each task's own metric.
        within: how far below the best member's score a member may be; none for no limit.
        diversity: the share of validation rows on which a member's decision must differ from that of every better one.
        filter: the MLflow filter that selected the candidates, shown on the card; none if all may vote.
        method: a name of ``METHODS``, or ``auto`` for stacking, unless another is clearly better out of fold.
        decision: ``argmax``, or ``offsets`` per class where these score better.
        calibration: whether pseudo-labels and ``tutti predict`` use confidences at the fitted temperature.
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
        key: the trial's key; ``STUDY/KEY`` if several studies vote together.
        number: the trial's number.
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
    """One task's ensemble, fitted to all validation rows, and what is needed to score it.

    Attributes:
        members: best first, in the order of ``ensemble.voters``.
        ballot: the predictions of every checkpoint that has the task, for the validation rows.
        keys: the keys of these checkpoints, in the order of the ballot.
        procedure: how the ensemble was chosen.
        single: how the best checkpoint alone would be chosen.
        best: the key of the best checkpoint.
    """

    members: tuple[Member, ...]
    ensemble: Ensemble
    ballot: Ballot
    keys: tuple[str, ...]
    procedure: Procedure
    single: Procedure
    best: str

    @cached_property
    def held_out(self) -> OutOfFold:
        """The ensemble's out-of-fold predictions: each validation row is predicted without a part in the choice."""
        return out_of_fold(self.procedure, self.ballot)

    @property
    def score(self) -> float:
        """The ensemble's score on the rows that chose it: optimistically biased."""
        combined = self.ensemble.combine(self.ballot.votes[self.ensemble.voters])
        return self.ballot.score(self.ballot.labels, self.ensemble.decide(combined))


@dataclass(frozen=True)
class Election:
    """The ensembles of all tasks.

    Attributes:
        checkpoints: every checkpoint of the bank, best objective first.
        tasks: the ensemble by task.
        rule: in words, how the members were chosen and combined; a phrase for the card.
        notes: remarks about the choice, one sentence each.
    """

    checkpoints: tuple[CheckpointRecord, ...]
    tasks: Mapping[str, Elected]
    rule: str
    notes: tuple[str, ...]

    @property
    def overlap(self) -> tuple[tuple[float, ...], ...]:
        """``overlap_of`` the tasks' validation rows."""
        return overlap_of([each.ballot.groups for each in self.tasks.values()])


@dataclass(frozen=True, eq=False)
class Votes:
    """The predictions of one task's members for one part.

    Attributes:
        ids: ``(rows,)`` of str.
        members: ``(members, rows, classes)`` float32 probabilities, or ``(members, rows)`` values of a regression.
        combined: ``(rows, classes)`` or ``(rows,)`` float32, the ensemble's combination of them.
    """

    ids: np.ndarray
    members: np.ndarray
    combined: np.ndarray


def elect(
    *,
    study: str,
    bank: Checkpoints,
    tasks: Sequence[Task],
    validation: Mapping[str, DataFrame],
    needed: Mapping[str, Sequence[str]],
    rule: Rule,
) -> Election:
    """Chooses the members of each task and fits the combiner to the validation rows.

    Ranked by task, the trials of a study that lacks a task vote in its others. Ranked by the objective, all trials must
    have all tasks.

    Args:
        validation: by task, its validation rows in order: ``id``, ``text``, and ``text_b`` for pairs. A checkpoint with
            other validation rows is refused: it may have trained on the study's.
        needed: by task, the parts besides the validation rows that its members must have predictions for.

    Raises:
        StudyError: if the bank is empty; if a checkpoint lacks a score or needed predictions, or has predictions for
            other rows or classes; or if the method cannot combine the values of a regression.
        StorageError: if the bank cannot be read.
    """
    records = bank.records()
    if not records:
        more = f"run `tutti tune --resume --trials +4` on the study file of {study} where all have failed"
        remedy = f"wait until a trial has finished, {more}, or restore the bank from a copy where it was lost"
        requirement = "have predictions of a finished trial in its bank"
        raise StudyError(Fault(f"the study {study}", requirement, "none", remedy))
    _raise_first(_unsuitable_tasks(tasks, rule.method))
    _raise_first(_without_scores(records, tasks, study=study, by=rule.by))
    candidates = {task.name: [record for record in records if task.name in record.task_scores] for task in tasks}
    keys = {name: {record.key for record in able} for name, able in candidates.items()}
    _raise_first(_without_parts(bank, {name: [_LABELLED] for name in keys}, keys, study))
    if lacking := [
        name for name, able in candidates.items() if not any(np.isfinite(_ranking_scores(able, name, rule.by)))
    ]:
        got, remedy = f"none in {' and '.join(lacking)}", "look at the trials' scores with `tutti trials`"
        raise StudyError(Fault(f"the study {study}", "have a trial with a score in every task", got, remedy))
    _raise_first(_of_another_split(bank, {name: able[0].key for name, able in candidates.items()}, validation, study))
    groups = text_groups_of({task.name: validation[task.name] for task in tasks})
    ballots = {task.name: _ballot(bank, task, candidates[task.name], groups[task.name]) for task in tasks}
    elected = {task.name: _elected(ballots, task, candidates[task.name], rule) for task in tasks}
    voting = {name: {member.key for member in each.members} for name, each in elected.items()}
    _raise_first(_without_parts(bank, needed, voting, study))
    ranking = top(np.array([record.score for record in records]), len(records))
    available = min(int(np.isfinite(each.procedure.standing).sum()) for each in elected.values())
    notes: tuple[str, ...] = ()
    if rule.top is not None and available < rule.top:
        request = f"The recipe asks for {counted(rule.top, 'member')}"
        notes = (f"{request}; there {'is' if available == 1 else 'are'} only {available}.",)
    if rule.filter is not None:
        notes = ("The best trial, too, is one of those that the filter finds; others may be better.", *notes)
    notes = (*_several_studies(records, tasks), *notes)
    counts = [len(each.members) for each in elected.values()]
    return Election(tuple(records[index] for index in ranking), elected, _in_words(rule, counts), notes)


def votes(bank: Checkpoints, *, task: Task, part: str, elected: Elected) -> Votes:
    """Reads the members' predictions for one part and combines them.

    Raises:
        StudyError: if a member's classes or rows are not those of the task and of the other members.
        StorageError: if the bank cannot be read.
    """
    ids, _, stacked = _stacked_votes(bank, task, part, [member.key for member in elected.members])
    return Votes(ids, stacked, elected.ensemble.combine(stacked))


def _ballot(bank: Checkpoints, task: Task, records: Sequence[CheckpointRecord], groups: np.ndarray) -> Ballot:
    _, labels, stacked = _stacked_votes(bank, task, _LABELLED, [record.key for record in records])
    if labels is None:
        raise StudyError(Fault(f"trial {records[0].key}, {task.name}/{_LABELLED}", "have labels", "none", _AGAIN))
    score = partial(score_decided, task.metric, classes=task.outputs)
    return Ballot(stacked, labels, score, groups, correlation=is_correlation(task.metric))


def _elected(ballots: Mapping[str, Ballot], task: Task, records: Sequence[CheckpointRecord], rule: Rule) -> Elected:
    ballot, by_task = ballots[task.name], rule.by == "task"
    auto = auto_methods(texts=ballot.texts, values=task.regression)
    procedure = Procedure(
        selection=Selection(rule.top, rule.within, rule.diversity),
        standing=_ranking_scores(records, task.name, rule.by),
        share=1 if by_task else 1 / len(records[0].task_scores),
        methods=auto if rule.method == "auto" else (rule.method,),
        offsets=rule.decision == "offsets",
        others=() if by_task else [other for name, other in ballots.items() if name != task.name],
    )
    single = Procedure(Selection(top=1), _ranking_scores(records, task.name, "task"), share=1, methods=("uniform",))
    ensemble = procedure.fit(ballot)
    members = tuple(
        Member(record.key, record.number, float(weight), record.task_scores[task.name], record.score)
        for record, weight in zip((records[index] for index in ensemble.voters), ensemble.combiner.weights, strict=True)
    )
    best = records[int(top(single.standing, 1)[0])].key
    return Elected(members, ensemble, ballot, tuple(record.key for record in records), procedure, single, best)


def _ranking_scores(records: Sequence[CheckpointRecord], task: str, by: str) -> np.ndarray:
    """``(checkpoints,)`` float64, the scores that rank them."""
    return np.array([record.score if by == "objective" else record.task_scores[task] for record in records])


def _stacked_votes(
    bank: Checkpoints, task: Task, part: str, keys: Sequence[str]
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Ids, labels and stacked votes of some checkpoints, checked to be for the same rows and classes."""
    first = bank.predictions(keys[0], task.name, part)
    columns = () if task.regression else (task.outputs,)
    stacked = np.empty((len(keys), len(first.ids), *columns), dtype=np.float32)
    for index, key in enumerate(keys):
        predictions = first if index == 0 else bank.predictions(key, task.name, part)
        what, remedy = f"trial {key}, {task.name}/{part}", _AGAIN
        votes = predictions.values if task.regression else predictions.probabilities
        if votes is None or predictions.class_names != task.class_names:
            classes = f"hold probabilities of the classes {', '.join(task.class_names)}"
            rule = "hold values of a regression" if task.regression else classes
            raise StudyError(Fault(what, rule, ", ".join(predictions.class_names) or "none", remedy))
        if not (np.array_equal(predictions.ids, first.ids) and _equal(predictions.labels, first.labels)):
            rule = f"hold the rows and labels that trial {keys[0]} holds, in the same order"
            if _owner(key) != _owner(keys[0]):
                remedy = _SPLIT
            raise StudyError(Fault(what, rule, _other_rows(first.ids, predictions.ids), remedy))
        stacked[index] = votes
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
        words.append(f"each different from all better ones in {100 * rule.diversity:g} % of the rows or more")
    if rule.filter is not None:
        words.append(f"found with {rule.filter}")
    return ", ".join([*words, _METHOD_PHRASES[rule.method]])


def _unsuitable_tasks(tasks: Sequence[Task], method: str) -> Iterator[Fault]:
    """A fault for each regression if the method needs classes."""
    if method != "auto" and not combines_values(method):
        able = [name for name in METHODS if combines_values(name)]
        for task in tasks:
            if task.regression:
                rule, got = "combine what the task's labels are", f"{task.name}, whose labels are numbers"
                yield Fault(
                    f"the method {method}", rule, got, f"name one of {', '.join(['auto', *able])} in the recipe"
                )


def _owner(key: str) -> str:
    """The study of a checkpoint; empty if only one votes."""
    return key.rpartition("/")[0]


def _tasks_by_study(records: Sequence[CheckpointRecord]) -> dict[str, set[str]]:
    tasks: dict[str, set[str]] = {}
    for record in records:
        tasks.setdefault(_owner(record.key), set()).update(record.task_scores)
    return tasks


def _several_studies(records: Sequence[CheckpointRecord], tasks: Sequence[Task]) -> Iterator[str]:
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


def _without_scores(
    records: Sequence[CheckpointRecord], tasks: Sequence[Task], *, study: str, by: str
) -> Iterator[Fault]:
    """A fault for each trial and task without a score. Ranked by task, all trials of another study may lack one."""
    remedy = f"{_AGAIN} where the tasks have changed"
    tasks_by_study = _tasks_by_study(records)
    for record in records:
        due, owner = [task.name for task in tasks], _owner(record.key)
        if by == "task" and owner not in ("", study):
            due = [name for name in due if name in tasks_by_study[owner]]
        for name in due:
            if name not in record.task_scores:
                yield Fault(f"trial {record.key}", f"have a validation score for task {name}", "none", remedy)


def _without_parts(
    bank: Checkpoints, needed: Mapping[str, Sequence[str]], voting: Mapping[str, set[str]], study: str
) -> Iterator[Fault]:
    parts_by_key = {key: bank.parts(key) for key in sorted(set().union(*voting.values()))}
    for key, parts in parts_by_key.items():
        for task, names in needed.items():
            missing = [name for name in names if name not in parts.get(task, ())]
            if missing and key in voting[task]:
                got, owner = f"none for {', '.join(missing)}", _owner(key)
                remedy = f"{_AGAIN} where the task's files have changed"
                if owner not in ("", study):
                    remedy = f"leave {owner} out, or run a study like it with the files of {study}"
                yield Fault(f"trial {key}", f"have predictions for every part of task {task}", got, remedy)


def _of_another_split(
    bank: Checkpoints, firsts: Mapping[str, str], validation: Mapping[str, DataFrame], study: str
) -> Iterator[Fault]:
    """A fault for each task whose validation rows are not those of its first candidate; ``firsts`` are their keys.

    ``_stacked_votes`` compares all other candidates with that one.
    """
    for task, key in firsts.items():
        expected = validation[task]["id"].to_numpy(dtype=np.str_)
        got = bank.predictions(key, task, _LABELLED).ids
        if not np.array_equal(expected, got):
            rule = "hold the study's validation rows, in their order"
            remedy = _AGAIN if _owner(key) in ("", study) else _SPLIT
            yield Fault(f"trial {key}, {task}/{_LABELLED}", rule, _other_rows(expected, got), remedy)


def _raise_first(faults: Iterator[Fault]) -> None:
    if first := tuple(islice(faults, _SHOWN)):
        raise StudyError(*first)


def _other_rows(expected: np.ndarray, got: np.ndarray) -> str:
    """In words, how rows that should be the same differ."""
    shared = len(set(expected.tolist()) & set(got.tolist()))
    if shared < max(len(expected), len(got)):
        return f"{counted(len(got), 'row')}, {shared} of them the same"
    return "other labels" if np.array_equal(expected, got) else "another order"


def _equal(left: np.ndarray | None, right: np.ndarray | None) -> bool:
    return (left is None) == (right is None) and (left is None or right is None or np.array_equal(left, right))
