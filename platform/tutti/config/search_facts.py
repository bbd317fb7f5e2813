"""The facts of every sampler and scheduler: the one place that lists their names and what fits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True)
class SamplerFacts:
    """What is known of a sampler.

    Attributes:
        learns: it learns from the scores of earlier trials.
        generational: it learns only from trials with a generation, which a trial gets when all its keys are sampled
            together.
        several_objectives: it can optimise several at once.
    """

    learns: bool = True
    generational: bool = False
    several_objectives: bool = True


@dataclass(frozen=True)
class SchedulerFacts:
    """What is known of a scheduler.

    Attributes:
        settings: keys of ``search:`` that it reads.
    """

    settings: tuple[str, ...] = ()


SAMPLERS: Mapping[str, SamplerFacts] = {
    "tpe": SamplerFacts(),
    "gp": SamplerFacts(),
    "cmaes": SamplerFacts(generational=True, several_objectives=False),
    "nsgaii": SamplerFacts(generational=True),
    "nsgaiii": SamplerFacts(generational=True),
    "qmc": SamplerFacts(learns=False),
    "random": SamplerFacts(learns=False),
    "grid": SamplerFacts(learns=False),
}
SCHEDULERS: Mapping[str, SchedulerFacts] = {
    "asha": SchedulerFacts(("grace_epochs", "reduction_factor")),
    "hyperband": SchedulerFacts(("grace_epochs", "reduction_factor")),
    "median": SchedulerFacts(("grace_epochs",)),
    "pbt": SchedulerFacts(("exchange_epochs",)),
    "none": SchedulerFacts(),
}
LEARNING = tuple(name for name, facts in SAMPLERS.items() if facts.learns)

if TYPE_CHECKING:
    Sampler = str
    Scheduler = str
else:  # names that pydantic checks
    Sampler = Literal[tuple(SAMPLERS)]
    Scheduler = Literal[tuple(SCHEDULERS)]
