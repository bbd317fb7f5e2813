"""Conditions of a search space: a key with ``when:`` is drawn only in trials whose other values are such."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tutti.config.space import Categorical, Distribution
from tutti.config.stages import STAGES
from tutti.errors import Fault, nearest

Values = Mapping[str, Any]


def fixed_values(training: Any) -> dict[str, Any]:
    """What ``training:`` sets, by the names that a search space has for it: a stage's keys as ``stages.0.KEY``."""
    if not isinstance(training, Mapping):
        return {}
    fixed = {key: value for key, value in training.items() if key != STAGES}
    stages = training.get(STAGES)
    for index, stage in enumerate(stages if isinstance(stages, list | tuple) else ()):
        if isinstance(stage, Mapping):
            fixed |= {f"{STAGES}.{index}.{key}": value for key, value in stage.items()}
    return fixed


def same(one: Any, other: Any) -> bool:
    """Whether two values of a file are one: 1 is 1.0, but true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def written(value: Any) -> str:
    """A value as it is written in a file."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def applies(distribution: Distribution, values: Values) -> bool:
    """Whether a key is drawn where the keys before it, and those under ``training:``, have these values."""
    return all(
        name in values and any(same(values[name], value) for value in wanted)
        for name, wanted in distribution.when.items()
    )


def drawing_order(space: Mapping[str, Distribution]) -> list[str]:
    """The keys, each after those that its condition names, otherwise as in the file; without keys of a circle."""
    ordered: list[str] = []
    waiting = list(space)
    while waiting:
        free = [key for key in waiting if not any(name in waiting for name in space[key].when)]
        if not free:
            break
        ordered.append(free[0])
        waiting.remove(free[0])
    return ordered


def without_undrawn(values: Values, space: Mapping[str, Distribution], fixed: Values) -> dict[str, Any]:
    """Of one value for each key of the space, those that a trial would draw."""
    drawn: dict[str, Any] = {}
    for key in drawing_order(space):
        if applies(space[key], {**fixed, **drawn}):
            drawn[key] = values[key]
    return drawn


def condition_faults(
    space: Mapping[str, Distribution], fixed: Values, *, known: Mapping[str, Any], what: Callable[[str], str]
) -> list[Fault]:
    """A fault for each condition that names no key, or a value that its key cannot have, and for a circle.

    Args:
        space: the sound distributions.
        known: all of them: what a condition says of one that is not sound is not looked at.
    """
    faults = []
    for key, distribution in space.items():
        for name, wanted in distribution.when.items():
            place = what(f"search_space.{key}.when.{name}")
            if name in space:
                faults += _value_faults(place, name, space[name], wanted)
            elif name not in known and name not in fixed:
                rule = "name a key that the search space varies or training: sets"
                remedy = nearest(
                    name, [*known, *fixed], otherwise=f"add it to training:, or take {name} out of `when:`"
                )
                faults.append(Fault(place, rule, repr(name), remedy))
    if circle := _circle(space):
        rule, remedy = "not lead back to the key itself", "take one of these conditions out"
        faults.append(Fault(what(f"search_space.{circle[0]}.when"), rule, " -> ".join([*circle, circle[0]]), remedy))
    return faults


def _value_faults(place: str, name: str, distribution: Distribution, wanted: tuple[Any, ...]) -> list[Fault]:
    if not isinstance(distribution, Categorical):
        rule, got = "name a key of the type categorical, or one under training:", f"{name} of the type "
        return [Fault(place, rule, got + distribution.type, f"make {name} categorical, or take the condition out")]
    choices = [written(choice) for choice in distribution.choices]
    return [
        Fault(
            place,
            f"be of the choices of {name}: {', '.join(choices)}",
            repr(value) if isinstance(value, str) else written(value),
            nearest(written(value), choices, otherwise="choose one of them"),
        )
        for value in wanted
        if not any(same(value, choice) for choice in distribution.choices)
    ]


def _circle(space: Mapping[str, Distribution]) -> list[str]:
    """The first keys whose conditions lead from one to the next and back; empty where there are none."""
    left = [key for key in space if key not in drawing_order(space)]
    path: list[str] = left[:1]
    while path:
        following = next(name for name in space[path[-1]].when if name in left)
        if following in path:
            return path[path.index(following) :]
        path.append(following)
    return []
