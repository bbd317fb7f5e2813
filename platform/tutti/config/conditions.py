"""Conditions of a search space: a key with ``when:`` is sampled only in trials whose other values match it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tutti.config.raw import entries
from tutti.config.space import Categorical, Distribution
from tutti.config.stages import STAGES
from tutti.errors import Fault, nearest

Values = Mapping[str, Any]


def fixed_values(training: Any) -> dict[str, Any]:
    """The values set under ``training:``, named as in a search space: the keys of a stage are ``stages.0.KEY``."""
    if not isinstance(training, Mapping):
        return {}
    fixed = {key: value for key, value in training.items() if key != STAGES}
    for index, stage in enumerate(entries(training, STAGES)):
        if isinstance(stage, Mapping):
            fixed |= {f"{STAGES}.{index}.{key}": value for key, value in stage.items()}
    return fixed


def same(left: Any, right: Any) -> bool:
    """Whether two values of a file are equal: 1 equals 1.0, but true does not equal 1."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def written(value: Any) -> str:
    """A value as it is written in a YAML file."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def applies(distribution: Distribution, values: Values) -> bool:
    """Whether the condition of a key holds for the values of the keys before it and of those under ``training:``."""
    return all(meets(distribution, name, values) for name in distribution.when)


def meets(distribution: Distribution, name: str, values: Values) -> bool:
    """Whether the key ``name`` has one of the values that the condition of a key asks for."""
    return name in values and any(same(values[name], value) for value in distribution.when[name])


def drawing_order(space: Mapping[str, Distribution]) -> list[str]:
    """The keys in file order, but each after those that its condition names; keys of a cycle are left out."""
    ordered: list[str] = []
    remaining = list(space)
    while remaining:
        ready = [key for key in remaining if not any(name in remaining for name in space[key].when)]
        if not ready:
            break
        ordered.append(ready[0])
        remaining.remove(ready[0])
    return ordered


def without_undrawn(values: Values, space: Mapping[str, Distribution], fixed: Values) -> dict[str, Any]:
    """The values that a trial would sample, from one value for each key of the space."""
    drawn: dict[str, Any] = {}
    for key in drawing_order(space):
        if applies(space[key], {**fixed, **drawn}):
            drawn[key] = values[key]
    return drawn


def condition_faults(
    space: Mapping[str, Distribution], fixed: Values, *, known: Mapping[str, Any], what: Callable[[str], str]
) -> list[Fault]:
    """A fault for each condition that names an unknown key or a value that its key cannot have, and for a cycle.

    Args:
        space: the valid distributions.
        known: all distributions of the file. Conditions on an invalid one are not checked.
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
    if cycle := _cycle(space):
        rule, remedy = "not lead back to the key itself", "take one of these conditions out"
        faults.append(Fault(what(f"search_space.{cycle[0]}.when"), rule, " -> ".join([*cycle, cycle[0]]), remedy))
    return faults


def _value_faults(place: str, name: str, distribution: Distribution, wanted: tuple[Any, ...]) -> list[Fault]:
    if not isinstance(distribution, Categorical):
        rule, got = "name a key of the type categorical, or one under training:", f"{name} of the type "
        return [Fault(place, rule, got + distribution.type, f"make {name} categorical, or take the condition out")]
    choices = [written(choice) for choice in distribution.choices]
    rule = f"be of the choices of {name}: {', '.join(choices)}"
    return [
        Fault(place, rule, quoted(value), nearest(written(value), choices, otherwise="choose one of them"))
        for value in wanted
        if not any(same(value, choice) for choice in distribution.choices)
    ]


def quoted(value: Any) -> str:
    """A value as a message shows it: texts in quotation marks, all others as in a study file."""
    return repr(value) if isinstance(value, str) else written(value)


def _cycle(space: Mapping[str, Distribution]) -> list[str]:
    """The keys of the first cycle of conditions, in order; empty where there is none."""
    unordered = [key for key in space if key not in drawing_order(space)]
    path: list[str] = unordered[:1]
    while path:
        following = next(name for name in space[path[-1]].when if name in unordered)
        if following in path:
            return path[path.index(following) :]
        path.append(following)
    return []
