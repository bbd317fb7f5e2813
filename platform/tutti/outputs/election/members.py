"""Elects the members of each task's ensemble and reads their votes, for ensembles and pseudo-labels alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.data.clean import text_groups_of
from tutti.ensembling.nested import Estimate, Judged, overlap_of
from tutti.ensembling.procedure import Ballot, Ensemble, OutOfFold, Procedure, auto_methods
from tutti.ensembling.select import Selection, top
from tutti.errors import Fault, StudyError, counted
from tutti.outputs.election.ballots import ballot_of, stacked_votes
from tutti.outputs.election.estimates import Estimates, plain_vote_of
from tutti.outputs.election.member_checks import (
    LABELLED,
    of_another_split,
    raise_first,
    second_stages,
    several_studies,
    unsuitable_tasks,
    without_parts,
    without_scores,
)
from tutti.outputs.election.poll import Poll, Rule
from tutti.records import CheckpointRecord
from tutti.tasks.scorer import metric_of, tuner_of

if TYPE_CHECKING:
    from tutti.tasks.task import Task

_MOST_DRAWN = 10  # members of which the report shows the score; what more of them add is small
_METHOD_PHRASES = {
    "auto": "combined in each task by {usual}, or by a method that is clearly better there",
    "uniform": "all with the same weight",
    "score": "weighed by their validation scores in the task",
    "rank": "combined by their ranks",
    "hard": "with one vote each",
    "greedy": "weighed by greedy selection",
    "stacking": "combined by stacking",
}


@dataclass(frozen=True)
class Member:
    """A checkpoint that votes for one task.

    Attributes:
        key: the trial's key; ``STUDY/KEY`` if several studies vote together.
        number: the trial's number.
        weight: its share of the vote; the members' weights sum to 1.
        score: its validation score in this task.
        objective: its study's score, the mean over all tasks as the study weighs them.
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
        weight: of the task in the study's score.
        estimates: computes what is estimated out of fold.
        task: that it votes in.
        identity: of the rule and the task, as of ``Estimates.of``.
    """

    members: tuple[Member, ...]
    ensemble: Ensemble
    ballot: Ballot
    keys: tuple[str, ...]
    procedure: Procedure
    single: Procedure
    best: str
    weight: float
    estimates: Estimates
    task: str
    identity: str | None

    @property
    def held_out(self) -> OutOfFold:
        """The ensemble's out-of-fold predictions: each validation row is predicted without a part in the choice."""
        return self.together[0]

    @cached_property
    def together(self) -> tuple[OutOfFold, Judged]:
        """``held_out``, and how it is judged."""
        return self._estimated(self.procedure, "the vote", "")

    @cached_property
    def alone(self) -> tuple[OutOfFold, Judged]:
        """The same of the best checkpoint alone, chosen in each fold."""
        return self._estimated(self.single, "the best trial", "single")

    @cached_property
    def by_members(self) -> list[Estimate]:
        """Estimates of the mean of the best 1, 2, 3 ... checkpoints, by their standing."""
        available = int(np.isfinite(self.procedure.standing).sum())
        plain = {
            count: plain_vote_of(self.procedure, self.ballot, members=count)
            for count in range(1, min(available, _MOST_DRAWN) + 1)
        }
        return [
            self._estimated(procedure, f"the vote of {count}", f"plain {count}")[1].estimate
            for count, procedure in plain.items()
        ]

    def _estimated(self, procedure: Procedure, what: str, name: str) -> tuple[OutOfFold, Judged]:
        identity = None if self.identity is None else f"{self.identity} {name}"
        return self.estimates.of(procedure, self.ballot, what=f"{what} in {self.task}", identity=identity)

    @property
    def score(self) -> float:
        """The ensemble's score on the rows that chose it: optimistically biased."""
        combined = self.ensemble.combine(self.ballot.votes[self.ensemble.voters])
        return self.ballot.score(self.ballot.labels, self.ensemble.judged(combined))


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

    @property
    def weights(self) -> dict[str, float]:
        """Of the tasks in the study's score."""
        return {name: each.weight for name, each in self.tasks.items()}


@dataclass(frozen=True, eq=False)
class Votes:
    """The predictions of one task's members for one part.

    Attributes:
        ids: ``(rows,)`` of str.
        members: ``(members, rows, ...)`` float32 outputs.
        combined: ``(rows, ...)`` float32, the ensemble's combination of them.
    """

    ids: np.ndarray
    members: np.ndarray
    combined: np.ndarray


def elect(
    poll: Poll, *, needed: Mapping[str, Sequence[str]] = MappingProxyType({}), wanted: Container[str] | None = None
) -> Election:
    """Chooses the members of each task and fits the combiner to the validation rows.

    Ranked by task, the trials of a study that lacks a task vote in its others. Ranked by the objective, all trials must
    have all tasks.

    Args:
        needed: by task, the parts besides the validation rows that its members must have predictions for.
        wanted: names of the tasks to elect for, by default all.

    Raises:
        StudyError: if the bank is empty; if a checkpoint lacks a score or needed predictions, or has predictions for
            other rows or classes; or if the method cannot combine a task's kind.
        StorageError: if the bank cannot be read.
    """
    study, bank, validation, rule = poll.study, poll.bank, poll.validation, poll.rule
    by_likelihood = {task.name for task in poll.tasks if task.scored_otherwise}
    tasks = [task.as_voted for task in poll.tasks]
    records = bank.records()
    if not records:
        more = f"run `tutti tune --resume --trials +4` on the study file of {study} where all have failed"
        remedy = f"wait until a trial has finished, {more}, or restore the bank from a copy where it was lost"
        requirement = "have predictions of a finished trial in its bank"
        raise StudyError(Fault(f"the study {study}", requirement, "none", remedy))
    apart = [task.name for task in tasks if task.kind.comparative]
    groups = text_groups_of({task.name: validation[task.name] for task in tasks}, apart=apart)
    texts_of = groups
    if apart or any("group" in rows for rows in validation.values()):  # rows of one group have different texts
        texts_of = text_groups_of(
            {name: rows.drop(columns="group", errors="ignore") for name, rows in validation.items()}
        )
    weights = {task.name: task.weight for task in tasks}
    others = [task for task in tasks if wanted is not None and task.name not in wanted]
    tasks = [task for task in tasks if task not in others]
    raise_first(unsuitable_tasks(tasks, rule.method))
    raise_first(without_scores(records, tasks, study=study, by=rule.by))
    candidates = {task.name: [record for record in records if task.name in record.task_scores] for task in tasks}
    keys = {name: {record.key for record in able} for name, able in candidates.items()}
    raise_first(without_parts(bank, {name: [LABELLED] for name in keys}, keys, study))
    if lacking := [
        name for name, able in candidates.items() if not any(np.isfinite(_ranking_scores(able, name, rule.by)))
    ]:
        got, remedy = f"none in {' and '.join(lacking)}", "look at the trials' scores with `tutti trials`"
        raise StudyError(Fault(f"the study {study}", "have a trial with a score in every task", got, remedy))
    raise_first(of_another_split(bank, {name: able[0].key for name, able in candidates.items()}, validation, study))
    ballots = {
        task.name: replace(
            ballot_of(bank, task, candidates[task.name], groups[task.name]), texts_of=texts_of[task.name]
        )
        for task in tasks
    }

    @cache
    def unwanted() -> list[Ballot]:
        """The ballots of further tasks with the same texts, which only estimates need."""
        texts = np.concatenate([groups[task.name] for task in tasks])
        sharing = [task for task in others if np.isin(groups[task.name], texts).any()]
        sharing = [task for task in sharing if all(task.name in record.task_scores for record in records)]
        every = {record.key for record in records}
        raise_first(
            without_parts(bank, {task.name: [LABELLED] for task in sharing}, dict.fromkeys(groups, every), study)
        )
        raise_first(of_another_split(bank, {task.name: records[0].key for task in sharing}, validation, study))
        return [ballot_of(bank, task, records, groups[task.name]) for task in sharing]

    def others_of(name: str) -> list[Ballot]:
        return [*(ballot for other, ballot in ballots.items() if other != name), *unwanted()]

    elected = {
        task.name: _elected(
            ballots[task.name],
            task,
            candidates[task.name],
            rule.model_copy(update={"by": "task"}) if task.name in by_likelihood else rule,
            partial(others_of, task.name),
            weights,
            poll.estimates,
            rescored=task.name in by_likelihood,
        )
        for task in tasks
    }
    voting = {name: {member.key for member in each.members} for name, each in elected.items()}
    raise_first(without_parts(bank, needed, voting, study))
    ranking = top(np.array([record.score for record in records]), len(records))
    available = min(int(np.isfinite(each.procedure.standing).sum()) for each in elected.values())
    notes: tuple[str, ...] = ()
    if rule.top is not None and available < rule.top:
        request = f"The recipe asks for {counted(rule.top, 'member')}"
        notes = (f"{request}; there {'is' if available == 1 else 'are'} only {available}.",)
    if rule.filter is not None:
        notes = ("The best trial, too, is one of those that the filter finds; others may be better.", *notes)
    notes = (*several_studies(records, tasks), *notes, *second_stages(records, voting))
    counts = [len(each.members) for each in elected.values()]
    return Election(tuple(records[index] for index in ranking), elected, _in_words(rule, counts, tasks), notes)


def score_of(elected: Elected, keys: Collection[str]) -> float:
    """The score of an ensemble of some of the checkpoints alone, on the rows that chose it; higher is better."""
    among = np.isin(elected.keys, list(keys))
    procedure = replace(
        elected.procedure,
        standing=np.where(among, elected.procedure.standing, np.nan),
        selection=Selection(),
        others=tuple,
    )
    return replace(elected, ensemble=procedure.fit(elected.ballot)).score


def votes(bank: Checkpoints, *, task: Task, part: str, elected: Elected) -> Votes:
    """Reads the members' predictions for one part and combines them.

    Raises:
        StudyError: if a member's classes or rows are not those of the task and of the other members.
        StorageError: if the bank cannot be read.
    """
    ids, _, stacked = stacked_votes(bank, task, part, [member.key for member in elected.members])
    return Votes(ids, stacked, elected.ensemble.combine(stacked))


def _elected(
    ballot: Ballot,
    task: Task,
    records: Sequence[CheckpointRecord],
    rule: Rule,
    others: Callable[[], Sequence[Ballot]],
    weights: Mapping[str, float],
    estimates: Estimates,
    *,
    rescored: bool = False,
) -> Elected:
    """A task's ensemble.

    Args:
        rescored: whether members stand by their score in the vote's metric, as trials had another one.
    """
    if rescored:
        scores = ballot.scores.tolist()
        records = [
            replace(record, task_scores={**record.task_scores, task.name: score})
            for record, score in zip(records, scores, strict=True)
        ]
    by_task = rule.by == "task"
    auto = auto_methods(task.kind, texts=ballot.texts)
    procedure = Procedure(
        selection=Selection(rule.top, rule.within, rule.diversity),
        standing=_ranking_scores(records, task.name, rule.by),
        share=1 if by_task else 1 / sum(weights.get(name, 1) for name in records[0].task_scores),
        weight=1 if by_task else task.weight,
        methods=auto if rule.method == "auto" else (rule.method,),
        tune=tuner_of(task, metric_of(task)) if rule.decision == "offsets" else ballot.score.tuner,
        others=tuple if by_task else others,
    )
    single = Procedure(
        Selection(top=1),
        _ranking_scores(records, task.name, "task"),
        share=1,
        methods=("uniform",),
        tune=ballot.score.tuner,
    )
    ensemble = procedure.fit(ballot)
    members = tuple(
        Member(record.key, record.number, float(weight), record.task_scores[task.name], record.score)
        for record, weight in zip((records[index] for index in ensemble.voters), ensemble.combiner.weights, strict=True)
    )
    best = records[int(top(single.standing, 1)[0])].key
    keys = tuple(record.key for record in records)
    identity = None if task.own_metric else f"{rule.model_dump_json()} {weights} {task}"  # whose file may change
    return Elected(
        members, ensemble, ballot, keys, procedure, single, best, task.weight, estimates, task.name, identity
    )


def _ranking_scores(records: Sequence[CheckpointRecord], task: str, by: str) -> np.ndarray:
    """``(checkpoints,)`` float64, the scores that rank them."""
    return np.array([record.score if by == "objective" else record.task_scores[task] for record in records])


def _in_words(rule: Rule, counts: Sequence[int], tasks: Sequence[Task]) -> str:
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
    numbers = [not task.kind.probabilistic for task in tasks]
    usual = "their mean" if all(numbers) else "stacking" + ", for numbers by their mean" * any(numbers)
    return ", ".join([*words, _METHOD_PHRASES[rule.method].format(usual=usual)])
