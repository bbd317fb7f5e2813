"""The values that a study's trials may have of a training option, whether it is fixed or searched."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from tutti.config.conditions import fixed_values
from tutti.config.space import Categorical
from tutti.config.stages import STAGES
from tutti.config.study import StudyConfig
from tutti.config.training import LIMIT_KEYS, limit_of
from tutti.records import TextLimit


def stages_of(study: StudyConfig) -> list[str]:
    """What precedes the keys of each stage, ``stages.N.``; a single empty text without stages."""
    return [f"{STAGES}.{index}." for index in range(len(study.training.get(STAGES) or ()))] or [""]


def possible_values(study: StudyConfig, name: str, stage: str = "") -> Iterator[tuple[str, Any]]:
    """The possible values of a training option in a stage, ``stages.N.``, each with the key that sets it.

    Of a range it is the highest one; None is the default. The stage's own keys override those of all stages.
    """
    fixed, space = fixed_values(study.training), study.search_space.root
    for key in dict.fromkeys((f"{stage}{name}", name)):
        if distribution := space.get(key):
            values = distribution.checked if isinstance(distribution, Categorical) else distribution.checked[-1:]
            yield from ((f"search_space.{key}", value) for _, value in values)
            if not distribution.when:
                return
        if key in fixed:
            yield f"training.{key}", fixed[key]
            return
    yield f"training.{name}", None


def possible_limits(study: StudyConfig) -> set[TextLimit]:
    """The limits that trials may have; of a range of lengths the highest one, which has the tokens of all others."""
    values = [[(key, value) for _, value in possible_values(study, key)] for key in LIMIT_KEYS]
    return {limit_of({key: value for key, value in chosen if value is not None}) for chosen in product(*values)}


def varies_as_range(study: StudyConfig, key: str) -> bool:
    varied = study.search_space.root.get(key)
    return varied is not None and not isinstance(varied, Categorical)
