"""Points that no sampler chooses: those that a study file enqueues, and those of a grid."""

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

# Names of trial attributes.
PROPOSED = "proposed"  # true once all parameters are sampled
_INDEX = "enqueued"  # index of the study file's point that the trial was enqueued with

Point = Mapping[str, Scalar]


def enqueue(
    study: optuna.Study,
    points: Sequence[Point],
    *,
    space: Mapping[str, BaseDistribution],
    trials: Sequence[FrozenTrial],
    grid: Grid | None,
) -> None:
    """Enqueues the points that no trial has yet, in order, so that they run before any sampled point."""
    enqueued = {trial.user_attrs.get(_INDEX) for trial in trials}
    taken = [{**trial.system_attrs.get("fixed_params", {}), **trial.params} for trial in trials]
    for index, point in enumerate(points):
        if index not in enqueued:
            # Normalised as the database does: an integer given for a float distribution becomes a float.
            stored = {key: space[key].to_external_repr(space[key].to_internal_repr(point[key])) for key in point}
            taken.append(grid.completed(stored, taken=taken) if grid else stored)
            study.enqueue_trial(taken[-1], user_attrs={_INDEX: index})


def is_waiting(trial: FrozenTrial) -> bool:
    """Whether a trial is an enqueued point of the study file that has not been asked for yet."""
    return trial.state is TrialState.WAITING and _INDEX in trial.user_attrs


class Grid:
    """Every point of a finite search space, in an order that depends only on the seed.

    Optuna's grid samplers do not fit: ``GridSampler`` assigns points by trial number, which enqueued trials and
    conditions shift; ``BruteForceSampler`` fails for good once a driver has died during a trial; and both end a study
    with ``Study.stop``, which does not work with ask and tell.
    """

    def __init__(self, space: SearchSpace, *, fixed: Mapping[str, Any], seed: int) -> None:
        self._points = list(grid(space.root, fixed))
        random.Random(seed).shuffle(self._points)

    def next(self, trials: Sequence[FrozenTrial]) -> dict[str, Scalar] | None:
        """The first point that no trial has; None where every point was used, or where an enqueued trial waits."""
        if any(trial.state is TrialState.WAITING for trial in trials):
            return None
        used = {_identity(trial.params) for trial in trials}
        return next((point for point in self._points if _identity(point) not in used), None)

    def completed(self, point: Point, *, taken: Sequence[Point]) -> dict[str, Scalar]:
        """The first grid point that agrees with a partial point, if possible one that is not yet ``taken``.

        The partial point itself where none agrees.
        """
        wanted, used = _identity(point), {*map(_identity, taken)}
        fitting = [candidate for candidate in self._points if wanted <= _identity(candidate)]
        unused = [candidate for candidate in fitting if _identity(candidate) not in used]
        return next(iter([*unused, *fitting]), dict(point))


def _identity(point: Point) -> frozenset[tuple[str, str]]:
    return frozenset((key, repr(value)) for key, value in point.items())
