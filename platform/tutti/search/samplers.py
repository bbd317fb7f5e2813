"""Makes the Optuna sampler of a study."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import optuna
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution
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

from tutti.config.search_facts import Sampler
from tutti.config.space import SearchSpace
from tutti.search.space import distributions
from tutti.search.trial_attributes import ending, resumption, violates

STARTUP_TRIALS = 5
"""Random trials before TPE or GP takes over. Optuna's 10 would never let them act in our default budget of 8 trials."""

POPULATION = 10
"""Population size of NSGA-II and NSGA-III. Optuna's 50 is more than most studies have trials."""


_GENETIC = {"nsgaii": NSGAIISampler, "nsgaiii": NSGAIIISampler}


def _genetic(name: str, seed: int) -> BaseSampler:
    return _GENETIC[name](seed=seed, population_size=POPULATION)


def make_sampler(name: Sampler, *, seed: int, space: SearchSpace, older: Sequence[FrozenTrial]) -> BaseSampler:
    """The sampler of a study.

    Args:
        seed: a study gives the same proposals for the same seed, however often it is resumed, as long as its trials
            run one at a time.
        older: trials of older studies, finished or stopped early, that the study started from.
    """
    unconditional = {key for key, distribution in space.root.items() if not distribution.when}
    makers: dict[Sampler, Callable[[int], BaseSampler]] = {
        "tpe": partial(_tpe, group=True),
        "gp": _Gp,
        "cmaes": lambda seed: _CmaEs(seed=seed, unconditional=unconditional, older=older),
        **{name: partial(_genetic, name) for name in _GENETIC},
        "random": RandomSampler,
        "grid": RandomSampler,  # every point is enqueued in full: nothing is left to sample
    }
    return _QuasiMonteCarlo(seed, distributions(space)) if name == "qmc" else _SeededByTrial(makers[name], seed=seed)


def first_generation(name: Sampler) -> dict[str, int]:
    """System attributes that put an older trial into the first generation of a genetic algorithm; else empty."""
    return {_GENETIC[name]._get_generation_key(): 0} if name in _GENETIC else {}


class _SeededByTrial(BaseSampler):
    """Draws every trial with a new sampler, whose seed depends only on the study's seed and the trial's number.

    A sampler that lived as long as its driver would draw other points after a resumption.
    """

    def __init__(self, make: Callable[[int], BaseSampler], *, seed: int) -> None:
        self._make, self._seed = make, seed
        self._sampler = self._made(0)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._sampler = self._made(trial.number)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(_without_exchanges(study), trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler.sample_relative(_without_exchanges(study), trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler.sample_independent(_without_exchanges(study), trial, param_name, param_distribution)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._sampler.after_trial(study, trial, state, values)

    def _made(self, number: int) -> BaseSampler:
        # Mixed, not added: otherwise the study with the next seed would draw the same points one trial earlier.
        mixed = int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return self._make(mixed)


class _View:
    """A study of which a sampler sees other trials."""

    def __init__(self, study: optuna.Study) -> None:
        self._study = study

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)


class _WithoutExchanges(_View):
    """A study without the trials that continued from another's checkpoint (population-based training).

    Their scores were reached with other parameters than the sampled ones.
    """

    def _get_trials(self, *args: Any, **options: Any) -> list[FrozenTrial]:
        trials = self._study._get_trials(*args, **options)
        return [trial for trial in trials if not resumption(trial).exchanges]


def _without_exchanges(study: optuna.Study) -> optuna.Study:
    return cast(optuna.Study, _WithoutExchanges(study))


def _tpe(seed: int, *, group: bool = False) -> TPESampler:
    """Multivariate TPE that treats running trials as bad ones (constant liar), so that concurrent trials differ.

    Args:
        group: whether conditional keys are sampled jointly with the keys that occur together with them.
    """
    return TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, group=group, constant_liar=True)


class _Gp(GPSampler):
    """A Gaussian process that also learns from trials that did not finish, as if they were no better than the worst.

    Optuna's sampler ignores them: where trials fail, are stopped or do not fit into memory, it would propose the same
    point again for the rest of the study. With several objectives a stopped trial has no values to compare, and this
    one ignores it too.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(
            seed=seed,
            n_startup_trials=STARTUP_TRIALS,
            independent_sampler=_tpe(seed),
            warn_independent_sampling=False,
        )

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        known = study if len(study.directions) > 1 else _WithUnfinished(study, search_space.keys())
        return super().sample_relative(known, trial, search_space)


class _WithUnfinished(_View):
    """A study in which a trial that failed or was stopped counts as complete, with its own score or the worst one.

    Args:
        keys: parameters that such a trial needs to have.
    """

    def __init__(self, study: optuna.Study, keys: Collection[str]) -> None:
        super().__init__(study)
        self._keys = set(keys)

    def _get_trials(self, **options: Any) -> list[FrozenTrial]:
        trials = self._study._get_trials(**options)
        scores = [float(trial.value) for trial in trials if trial.state is TrialState.COMPLETE]
        if not scores:
            return trials
        worst = min(scores)
        unfinished = self._study._get_trials(deepcopy=False, states=(TrialState.PRUNED, TrialState.FAIL))
        return trials + [
            create_trial(
                value=worst if trial.value is None else min(worst, trial.value),
                params=trial.params,
                distributions=trial.distributions,
            )
            for trial in unfinished
            if trial.params.keys() >= self._keys
        ]


class _QuasiMonteCarlo(QMCSampler):
    """A scrambled Sobol sequence over the whole space; a trial uses the coordinates of the keys that it samples.

    Optuna's sampler infers the space from the first finished trial, which may lack conditional keys, and counts its
    proposals, of which a trial that a killed driver left half drawn would take two. Here the trial's number counts: it
    learns nothing, so a study with it has no older studies' trials, which would be numbered too.
    """

    def __init__(self, seed: int, space: Mapping[str, BaseDistribution]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            super().__init__(seed=seed, scramble=True, warn_independent_sampling=False)
        self._space = {key: kind for key, kind in space.items() if not kind.single()}
        self._place = 0

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        self._place = trial.number
        return super().sample_relative(study, trial, search_space)

    def _find_sample_id(self, study: optuna.Study, search_space: dict[str, BaseDistribution]) -> int:
        return self._place


class _CmaEs(CmaEsSampler):
    """CMA-ES over the numeric keys that every trial has; TPE samples all others independently.

    Optuna's sampler stops for good once the numeric keys common to all trials change, which conditions make them do,
    and it stores its state as a pickle in the study's database, which may come from an untrusted source. This one
    stores no state: it is recomputed from the study's trials, generation by generation.
    """

    def __init__(self, *, seed: int, unconditional: Collection[str], older: Sequence[FrozenTrial]) -> None:
        super().__init__(
            seed=seed,
            independent_sampler=_tpe(seed),
            consider_pruned_trials=True,  # with ASHA, most trials are pruned
            warn_independent_sampling=False,
        )
        self._unconditional, self._older = unconditional, older

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        space = super().infer_relative_search_space(study, trial)
        return {key: kind for key, kind in space.items() if key in self._unconditional}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        # By the time of completion: later trials then never change which ones made up an earlier generation. Optuna
        # would count one that ran out of memory by its last report.
        feasible = [ended for ended in self._get_trials(study) if not violates(ended)]
        trials = sorted(feasible, key=lambda ended: ending(ended).get("at", 0.0))
        if not search_space or not trials:
            return {}
        # The space may be narrower than the older trials' one: of a key whose range the user has changed since, no
        # trial has the same distribution as all others.
        self._source_trials = _source_trials(self._older, search_space) or None
        transform = _SearchSpaceTransform(search_space, transform_step=True, transform_0_1=True)
        optimizer = self._replay(transform, trials)
        optimizer._rng.seed(self._cma_rng.rng.randint(1, 2**16) + trial.number)
        parameters = transform.untransform(optimizer.ask())
        study._storage.set_trial_system_attr(trial._trial_id, self._attr_key_generation, optimizer.generation)
        return parameters

    def _replay(self, transform: _SearchSpaceTransform, trials: list[FrozenTrial]) -> Any:
        """The CMA-ES optimizer after every complete generation of the trials."""
        optimizer: Any = self._init_optimizer(transform, StudyDirection.MAXIMIZE)
        size = optimizer.population_size
        while len(solutions := self._get_solution_trials(trials, optimizer.generation)[:size]) == size:
            optimizer.tell([(transform.transform(trial.params), -float(trial.value)) for trial in solutions])
        return optimizer

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Skips Optuna's CMA-ES hook, which warns that it ignores constraints: the TPE sampler here uses them."""
        self._independent_sampler.after_trial(study, trial, state, values)


def _source_trials(older: Sequence[FrozenTrial], keys: Collection[str]) -> list[FrozenTrial]:
    """The finished older trials in the form that warm-starting CMA-ES needs: these keys only, and at least ten trials.

    It starts from the best tenth of them. Fewer than ten are repeated ten times, so that it starts from the best one.
    """
    finished = [
        create_trial(
            value=trial.value,
            params={key: trial.params[key] for key in keys},
            distributions={key: trial.distributions[key] for key in keys},
        )
        for trial in older
        if trial.state is TrialState.COMPLETE
    ]
    return finished * (10 if len(finished) < 10 else 1)
