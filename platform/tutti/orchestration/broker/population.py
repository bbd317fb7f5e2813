"""Population based training: at regular exchanges the worst trials continue from the best, with perturbed parameters.

Jaderberg et al. 2017, arXiv 1711.09846, with truncation selection. Unlike Ray's scheduler of that name, exchanges are
synchronous: a trial that has reached one frees its workers and waits for all others. So trials are compared after the
same number of epochs, on however few workers, and the same scores lead to the same exchanges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from tutti.config.space import Categorical, Distribution, Int
from tutti.config.study import CHANGING
from tutti.records import Scalar

ONE_IN = 4
"""One trial in this many continues from another one; at least one."""
FACTORS = (0.8, 1.2)
RESAMPLE_PROBABILITY = 0.25  # of a categorical parameter, and of 0, which no factor changes


@dataclass(frozen=True)
class Exchange:
    """A trial takes over the state of another one.

    Attributes:
        donor: key of the trial that it continues from.
        epoch: the epoch of the donor's state.
        parameters: its parameters from then on: the donor's, some of them perturbed.
    """

    donor: str
    epoch: int
    parameters: Mapping[str, Scalar]


@dataclass(frozen=True)
class Population:
    """Trials that exchange states.

    Args:
        size: number of trials. The first exchange waits until all of them have been submitted.
        every: epochs between exchanges.
    """

    space: Mapping[str, Distribution]
    size: int
    every: int
    seed: int

    def plan_exchanges(
        self, epoch: int, scores: Mapping[str, float], parameters: Mapping[str, Mapping[str, Scalar]]
    ) -> dict[str, Exchange]:
        """The exchanges by the key of the trial that continues from another one. Deterministic in scores and seed.

        Args:
            scores: by key, the score after the epoch.
            parameters: by key, the parameters up to the epoch.
        """
        ranked = sorted(scores, key=lambda key: (-scores[key], key))
        count = min(max(len(ranked) // ONE_IN, 1), len(ranked) // 2)
        best, exchanges = ranked[:count], {}
        for key in ranked[len(ranked) - count :]:
            rng = random.Random(f"{self.seed} {epoch} {key}")
            donor = rng.choice(best)
            if scores[key] < scores[donor]:
                exchanges[key] = Exchange(donor, epoch, self._perturbed(parameters[donor], rng))
        return exchanges

    def _perturbed(self, parameters: Mapping[str, Scalar], rng: random.Random) -> dict[str, Scalar]:
        return {
            key: _perturbed(self.space[key], value, rng) if key in CHANGING and key in self.space else value
            for key, value in parameters.items()
        }


def _perturbed(distribution: Distribution, value: Scalar, rng: random.Random) -> Scalar:
    """The value times 0.8 or 1.2, within its range and on its steps; 0 or a choice is sometimes drawn again."""
    if isinstance(distribution, Categorical):
        # None (off) stays None, and others stay on: a donor without weight averaging, for one, has no average to copy.
        choices = [choice for choice in distribution.choices if (choice is None) == (value is None)]
        return rng.choice(choices) if rng.random() < RESAMPLE_PROBABILITY else value
    assert isinstance(value, int | float)
    factor, low, high, step = rng.choice(FACTORS), distribution.low, distribution.high, distribution.step
    scaled = min(max(value * factor, low), high)
    if value == 0 and rng.random() < RESAMPLE_PROBABILITY:
        scaled = rng.uniform(low, high)
    if step is None:
        return scaled
    # At least one step, or a value that is small compared with its step would never change.
    steps = round((value - low) / step) + (math.ceil if factor > 1 else math.floor)((scaled - value) / step)
    nearest = low + min(max(steps, 0), math.floor((high - low) / step + 1e-6)) * step
    return int(nearest) if isinstance(distribution, Int) else float(nearest)
