"""What a task's ensemble is worth, measured on rows that had no part in choosing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tutti.ensembling.calibrate import expected_calibration_error, reliability
from tutti.ensembling.nested import LEAST_JUDGED, judge
from tutti.ensembling.procedure import OutOfFold, out_of_fold
from tutti.outputs.card import Calibration, TaskCard
from tutti.outputs.members import Elected

if TYPE_CHECKING:
    from tutti.tasks.task import Task


def task_card(task: Task, elected: Elected, *, rows: Mapping[str, int]) -> TaskCard:
    """The task's part of the card, with the scores of the ensemble and of the best trial alone.

    Both are chosen anew on four fifths of the validation rows and judged on the last one, for each fifth; the folds and
    resamples are the same for both, so that their difference has an interval of its own. Fewer than 25 rows are not
    enough for that.

    Args:
        rows: rows in each test part.
    """
    ballot, ensemble = elected.ballot, elected.ensemble
    score = single = gain = calibration = None
    if len(ballot.labels) >= LEAST_JUDGED:
        held = elected.held
        together = judge(held.decisions, ballot.labels, score=ballot.score, seed=0)
        alone = judge(out_of_fold(elected.single, ballot).decisions, ballot.labels, score=ballot.score, seed=0)
        score, single, gain = together.estimate, alone.estimate, together.over(alone)
        calibration = _calibration(elected, held)
    offsets = None if ensemble.offsets is None else dict(zip(task.class_names, ensemble.offsets.tolist(), strict=True))
    return TaskCard(
        task=task.name,
        metric=task.metric,
        method=ensemble.method,
        members=elected.members,
        score=score,
        single=single,
        gain=gain,
        offsets=offsets,
        calibration=calibration,
        rows={"validation": len(ballot.labels), **rows},
    )


def _calibration(elected: Elected, held: OutOfFold) -> Calibration | None:
    if held.probabilities is None or held.calibrated is None:
        return None
    both, labels = (held.probabilities, held.calibrated), elected.ballot.labels
    before, after = (expected_calibration_error(said, labels) for said in both)
    return Calibration(elected.ensemble.temperature, before, after, *(reliability(said, labels) for said in both))
