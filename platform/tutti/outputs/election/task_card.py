"""Scores a task's ensemble by cross-validation, on rows that had no part in choosing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tutti.config.metric_facts import FACTS
from tutti.ensembling.calibrate import expected_calibration_error, known_units, reliability
from tutti.ensembling.nested import MIN_TEXTS_NESTED
from tutti.ensembling.procedure import OutOfFold
from tutti.outputs.election.card import Calibration, TaskCard
from tutti.outputs.election.members import Elected
from tutti.tasks.scorer import metric_of

if TYPE_CHECKING:
    from tutti.tasks.task import Task


def task_card(task: Task, elected: Elected, *, rows: Mapping[str, int]) -> TaskCard:
    """The task's part of the card, with nested 5-fold estimates of the ensemble and of the best trial alone.

    In each fold, both are chosen on four fifths of the validation rows and scored on the last fifth. They share folds
    and bootstrap resamples, so their difference has a paired interval. Fewer texts than ``MIN_TEXTS_NESTED`` get no
    scores.

    Args:
        rows: the number of rows by test part.
    """
    task = task.as_voted
    ballot, ensemble = elected.ballot, elected.ensemble
    score = single = gain = calibration = None
    if ballot.texts >= MIN_TEXTS_NESTED:
        (held_out, together), (_, alone) = elected.together, elected.alone
        score, single, gain = together.estimate, alone.estimate, together.over(alone)
        calibration = _calibration(elected, held_out)
    decision = ensemble.decision
    return TaskCard(
        task=task.name,
        metric=task.metric,
        method=ensemble.method,
        members=elected.members,
        score=score,
        single=single,
        gain=gain,
        offsets=None if decision is None else task.kind.decision_by_name(task.names, decision),
        calibration=calibration,
        rows={"validation": len(ballot.labels), **rows},
        weight=task.weight,
        decision="none is made" if task.needs == "probabilities" else task.kind.decision_text(task.names, decision),
        higher_is_better=metric_of(task).higher_is_better,
        points=task.own_metric is None and FACTS[task.metric].is_share,
    )


def _calibration(elected: Elected, held_out: OutOfFold) -> Calibration | None:
    kind = elected.ballot.score.kind
    if not kind.probabilistic:
        return None
    assert held_out.probabilities is not None
    assert held_out.calibrated is not None
    both = held_out.probabilities, held_out.calibrated
    units = [known_units(kind, each, elected.ballot.labels) for each in both]
    error_before, error_after = (expected_calibration_error(*each) for each in units)
    before, after = (reliability(*each) for each in units)
    return Calibration(elected.ensemble.temperature, error_before, error_after, before, after)
