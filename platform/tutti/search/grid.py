"""Points that are settled before a sampler is asked: those that a study file names, and those of a grid."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from tutti.config.points import grid
from tutti.config.space import SearchSpace
from tutti.records import Scalar

PROPOSED = "proposed"  # the attribute of a trial whose parameters are all chosen
_INDEX = "enqueued"  # the attribute that says which of the study file's points a trial is

Point = Mapping[str, Scalar]


def enqueue(
    study: optuna.Study,
    points: Sequence[Point],
    *,
    space: Mapping[str, BaseDistribution],
    trials: Sequence[FrozenTrial],
    grid: Grid | None,
) -> None:
    """Puts points in front of all that the sampler will choose, in order, each once in a study's life."""
    there = {trial.user_attrs.get(_INDEX) for trial in trials}
    for index, point in enumerate(points):
        if index not in there:
            # As the database would give it back: a whole number for a key of floats is a float.
            plain = {key: space[key].to_external_repr(space[key].to_internal_repr(point[key])) for key in point}
            study.enqueue_trial(grid.completed(plain) if grid else plain, user_attrs={_INDEX: index})


def waits(trial: FrozenTrial) -> bool:
    """Whether a trial is one of the study file's points that nobody has asked for yet."""
    return trial.state is TrialState.WAITING and _INDEX in trial.user_attrs


class Grid:
    """Every point of a finite space, in an order that depends on the seed alone.

    Optuna's samplers for grids do not serve: one deals points by trial number, which enqueued trials and conditions
    upset, the other fails for good where a driver died in the midst of a trial, and both end a study by its `stop`,
    which ask and tell do not know.
    """

    def __init__(self, space: SearchSpace, *, fixed: Mapping[str, Any], seed: int) -> None:
        self._points = list(grid(space.root, fixed))
        random.Random(seed).shuffle(self._points)

    def next(self, trials: Sequence[FrozenTrial]) -> dict[str, Scalar] | None:
        """The first point that no trial has; none where each was had, or where one waits to be run."""
        if any(trial.state is TrialState.WAITING for trial in trials):
            return None
        had = {_identity(trial.params) for trial in trials}
        return next((point for point in self._points if _identity(point) not in had), None)

    def completed(self, point: Point) -> dict[str, Scalar]:
        """The first point that has what this one says."""
        wanted = _identity(point)
        return next((own for own in self._points if wanted <= _identity(own)), dict(point))


def _identity(point: Point) -> frozenset[tuple[str, str]]:
    return frozenset((key, repr(value)) for key, value in point.items())
