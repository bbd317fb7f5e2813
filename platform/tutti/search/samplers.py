"""Which of Optuna's samplers chooses the points of a study, and how it is set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import optuna
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    NSGAIIISampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from tutti.config.study import Sampler

STARTUP_TRIALS = 5
"""Random trials before TPE or GP takes over. Optuna's 10 would leave a budget of 8 trials, our default, without any."""

POPULATION = 10
"""Finished trials that make a generation of NSGA-II and -III. Optuna's 50 are more than most studies have trials."""


def make_sampler(
    name: Sampler,
    *,
    seed: int,
    kept: int,
    space: Mapping[str, BaseDistribution],
    conditional: Collection[str],
    older: Sequence[FrozenTrial],
) -> BaseSampler:
    """The sampler of a study.

    Args:
        seed: the same seed from an empty study gives the same proposals.
        kept: how many trials the study has. A resumed study counts them in, so that it does not repeat them.
        space: every key that a trial may draw.
        conditional: those of them that not every trial draws.
        older: trials of other studies, finished or stopped early, that the study was begun with.
    """
    counted = seed + kept
    makers: dict[Sampler, Callable[[], BaseSampler]] = {
        "tpe": lambda: _tpe(counted, group=True),
        "gp": lambda: GPSampler(
            seed=counted,
            n_startup_trials=STARTUP_TRIALS,
            independent_sampler=_tpe(counted),
            warn_independent_sampling=False,
        ),
        "cmaes": lambda: _CmaEs(seed=counted, unconditional=space.keys() - set(conditional), older=older),
        "nsgaii": lambda: NSGAIISampler(seed=counted, population_size=POPULATION),
        "nsgaiii": lambda: NSGAIIISampler(seed=counted, population_size=POPULATION),
        "qmc": lambda: _QuasiMonteCarlo(seed, space),
        "random": lambda: RandomSampler(seed=counted),
        "grid": lambda: RandomSampler(seed=counted),  # the queue has every point: nothing is left to draw
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return makers[name]()


def first_generation(name: Sampler) -> dict[str, int]:
    """The system attributes by which an older trial is of the first generation of a genetic algorithm; else none."""
    genetic = {"nsgaii": NSGAIISampler, "nsgaiii": NSGAIIISampler}
    return {genetic[name]._get_generation_key(): 0} if name in genetic else {}


def _tpe(seed: int, *, group: bool = False) -> TPESampler:
    """Multivariate TPE that treats running trials as bad ones, so that trials at a time differ.

    Args:
        group: whether keys that some trials have and others not are drawn jointly with those that come with them.
    """
    return TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, group=group, constant_liar=True)


class _QuasiMonteCarlo(QMCSampler):
    """A scrambled Sobol sequence over the whole space, of which a trial takes the keys that it draws.

    Optuna's own takes the space from whichever trial has ended first, which need not have drawn every key. How far the
    sequence has come is kept with the study under the seed, so that a resumed one goes on in it.
    """

    def __init__(self, seed: int, space: Mapping[str, BaseDistribution]) -> None:
        super().__init__(seed=seed, scramble=True, warn_independent_sampling=False)
        self._space = {key: kind for key, kind in space.items() if not kind.single()}

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._space


class _CmaEs(CmaEsSampler):
    """CMA-ES over the numbers that every trial has; all else is drawn by TPE, key by key.

    Optuna's own stops for good once the numbers that all trials have in common change, as with conditions they do, and
    it keeps its state as a pickle in the study's database, which may come from anybody. Here the state is kept nowhere:
    it follows from the study's trials, generation by generation.
    """

    def __init__(self, *, seed: int, unconditional: Collection[str], older: Sequence[FrozenTrial]) -> None:
        super().__init__(
            seed=seed,
            independent_sampler=_tpe(seed),
            consider_pruned_trials=True,  # with ASHA, few trials are not
            warn_independent_sampling=False,
            source_trials=_sources(older, unconditional) or None,
        )
        self._unconditional = unconditional

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        space = super().infer_relative_search_space(study, trial)
        return {key: kind for key, kind in space.items() if key in self._unconditional}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        # In the order in which they ended: those that a generation was made of stay so, whichever come later.
        trials = sorted(self._get_trials(study), key=lambda each: each.datetime_complete)
        if not search_space or not trials:
            return {}
        transform = _SearchSpaceTransform(search_space, transform_step=True, transform_0_1=True)
        optimizer = self._evolved(transform, trials)
        optimizer._rng.seed(self._cma_rng.rng.randint(1, 2**16) + trial.number)
        drawn = transform.untransform(optimizer.ask())
        study._storage.set_trial_system_attr(trial._trial_id, self._attr_key_generation, optimizer.generation)
        return drawn

    def _evolved(self, transform: _SearchSpaceTransform, trials: list[FrozenTrial]) -> Any:
        """CMA-ES as it is after every generation that is whole."""
        optimizer: Any = self._init_optimizer(transform, StudyDirection.MAXIMIZE)
        size = optimizer.population_size
        while len(solutions := self._get_solution_trials(trials, optimizer.generation)[:size]) == size:
            optimizer.tell([(transform.transform(each.params), -float(each.value)) for each in solutions])
        return optimizer

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Not Optuna's own, which warns that a constraint is of no use to it: TPE, for the rest, makes use of it."""
        self._independent_sampler.after_trial(study, trial, state, values)


def _sources(older: Sequence[FrozenTrial], unconditional: Collection[str]) -> list[FrozenTrial]:
    """The older trials as warm-starting CMA-ES takes them: with numbers alone, and ten or more.

    It begins at the best tenth of them; where there are fewer than ten, all are repeated, and that is the best one.
    """
    plain = [_numbers_of(trial, unconditional) for trial in older if trial.state is TrialState.COMPLETE]
    return [trial for trial in plain if trial.params] * (10 if len(plain) < 10 else 1)


def _numbers_of(trial: FrozenTrial, unconditional: Collection[str]) -> FrozenTrial:
    kinds = {
        key: kind
        for key, kind in trial.distributions.items()
        if key in unconditional and not kind.single() and not isinstance(kind, CategoricalDistribution)
    }
    return create_trial(value=trial.value, params={key: trial.params[key] for key in kinds}, distributions=kinds)
