"""Population based training: at each meeting of the trials the worst go on from the best, with settings a little other.

Jaderberg et al. 2017, arXiv 1711.09846, with truncation selection. Unlike Ray's scheduler of that name the population
meets: a trial that has come to a meeting lets its workers go and waits until all others are there, so that a trial is
compared with others of its own age, on however few workers, and the same scores lead to the same exchanges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from tutti.config.space import Categorical, Distribution, Int, LogUniform
from tutti.config.study import CHANGING
from tutti.records import Scalar

SHARE = 4
"""One trial in so many goes on from another one; at least one."""
FACTORS = (0.8, 1.2)
RESAMPLED = 0.25  # the probability that a category is drawn anew


@dataclass(frozen=True)
class Exchange:
    """A trial takes over the state of another one.

    Attributes:
        donor: key of the trial that it goes on from.
        epoch: after which.
        parameters: its own from then on: the donor's, some of them changed.
    """

    donor: str
    epoch: int
    parameters: Mapping[str, Scalar]


@dataclass(frozen=True)
class Population:
    """The trials that meet.

    Args:
        size: how many they are; they first meet when all were asked for.
        every: epochs from one meeting to the next.
    """

    space: Mapping[str, Distribution]
    size: int
    every: int
    seed: int

    def meets(self, epoch: int) -> bool:
        """Whether the trials meet after an epoch."""
        return epoch % self.every == 0

    def exchanges(
        self, epoch: int, scores: Mapping[str, float], parameters: Mapping[str, Mapping[str, Scalar]]
    ) -> dict[str, Exchange]:
        """Who of those who met goes on from whom, by key. They follow from the scores and the seed.

        Args:
            scores: by key, what each has scored after the epoch.
            parameters: by key, what each has had up to it.
        """
        ranked = sorted(scores, key=lambda key: (-scores[key], key))
        count = min(max(len(ranked) // SHARE, 1), len(ranked) // 2)
        best, found = ranked[:count], {}
        for key in ranked[len(ranked) - count :]:
            chance = random.Random(f"{self.seed} {epoch} {key}")
            donor = chance.choice(best)
            if scores[key] < scores[donor]:
                found[key] = Exchange(donor, epoch, self._changed(parameters[donor], chance))
        return found

    def _changed(self, parameters: Mapping[str, Scalar], chance: random.Random) -> dict[str, Scalar]:
        return {
            key: _changed(self.space[key], value, chance) if key in CHANGING and key in self.space else value
            for key, value in parameters.items()
        }


def _changed(distribution: Distribution, value: Scalar, chance: random.Random) -> Scalar:
    """The value times 0.8 or 1.2, within its range and on its steps; of categories sometimes another draw."""
    if isinstance(distribution, Categorical):
        # What is on stays on, and what is off stays off: a donor's state has no average for one that begins to keep it.
        alike = [choice for choice in distribution.choices if (choice is None) == (value is None)]
        return chance.choice(alike) if chance.random() < RESAMPLED else value
    assert isinstance(value, int | float)
    factor, low, high = chance.choice(FACTORS), distribution.low, distribution.high
    step = None if isinstance(distribution, LogUniform) else distribution.step
    moved = min(max(value * factor, low), high)
    if step is None:
        return moved
    # A step away at least, else what is small beside its steps would never move.
    steps = round((value - low) / step) + (math.ceil if factor > 1 else math.floor)((moved - value) / step)
    nearest = low + min(max(steps, 0), math.floor((high - low) / step + 1e-6)) * step
    return int(nearest) if isinstance(distribution, Int) else float(nearest)
