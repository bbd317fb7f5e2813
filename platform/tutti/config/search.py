"""Checks ``search:`` against the search space: conditions, grids, enqueued points, objectives, warm start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, get_args

from tutti.config.conditions import Values, applies, condition_faults, fixed_values, quoted, same, written
from tutti.config.points import grid, is_finite, value_fault
from tutti.config.raw import section
from tutti.config.search_facts import LEARNING, SAMPLERS
from tutti.config.space import Categorical, Distribution, sound_distributions
from tutti.config.study import Objective, Search
from tutti.errors import Fault, nearest

MAX_GRID_POINTS = 10_000  # nobody runs a larger grid to its end

OBJECTIVES = get_args(Objective)

What = Callable[[str], str]


def search_faults(raw: Mapping[str, Any], *, what: What) -> list[Fault]:
    """A fault for each distribution, condition, point, or budget that does not fit the search space as a whole."""
    known, search = section(raw, "search_space"), section(raw, "search")
    space, fixed = sound_distributions(known), fixed_values(raw.get("training"))
    faults = []
    for key, distribution in space.items():
        if isinstance(distribution, Categorical):
            faults += _choice_faults(what(f"search_space.{key}.choices"), distribution.choices)
    faults += condition_faults(space, fixed, known=known, what=what)
    if not faults:
        faults += _enqueue_faults(search.get("enqueue"), space, fixed, known=known, what=what)
        if search.get("sampler") == "grid" and len(space) == len(known):
            faults += _grid_faults(search, space, fixed, what=what)
    faults += _objective_faults(search, what=what)
    trials = search.get("trials", Search().trials)
    if raw.get("search_space", {}) == {} and type(trials) in (int, float) and trials > 1:
        rule = "be 1 without a search space, as all trials would be the same"
        remedy = "add `search_space: small` or another one, or set it to 1"
        faults.append(Fault(what("search.trials"), rule, str(trials), remedy))
    sampler = search.get("sampler", Search().sampler)
    if search.get("warm_start") and sampler not in LEARNING and isinstance(sampler, str):
        rule = f"go with a sampler that learns from trials: {', '.join(LEARNING)}"
        remedy = "name one of these as search.sampler, or take search.warm_start out"
        faults.append(Fault(what("search.warm_start"), rule, f"the sampler {sampler}", remedy))
    return faults


def _choice_faults(place: str, choices: tuple[Any, ...]) -> list[Fault]:
    faults = []
    for index, choice in enumerate(choices):
        first = choices[choices.index(choice)]  # as Optuna compares them: 0 equals false
        if choices.index(choice) < index:
            got = written(choice) + ("" if same(choice, first) else f", which Optuna takes for {written(first)}")
            rule, remedy = "differ from the choices before it", "take one of the two out"
            faults.append(Fault(f"{place}.{index}", rule, got, remedy))
    return faults


def _objective_faults(search: Mapping[str, Any], *, what: What) -> list[Fault]:
    """Faults of objectives that are known ones, and of settings that do not go with them."""
    objectives = search.get("objectives")
    if not isinstance(objectives, list | tuple) or not objectives or not set(map(str, objectives)) <= {*OBJECTIVES}:
        return []
    listed, several, faults = ", ".join(objectives), len(objectives) > 1, []
    if len(set(objectives)) < len(objectives):
        faults.append(Fault(what("search.objectives"), "name each objective once", listed, "take out the second one"))
    if not {"score", "gain"} & {*objectives}:
        rule, remedy = "have score or gain among them, or the least training would be the best", "add score"
        faults.append(Fault(what("search.objectives"), rule, listed, remedy))
    if [*objectives] != ["score"] and search.get("scheduler", "none") != "none":
        rule = "be none with other objectives: a scheduler sees the score alone, and would stop trials for it"
        remedy = "take it out, or have the objective score alone"
        faults.append(Fault(what("search.scheduler"), rule, str(search["scheduler"]), remedy))
    sampler = str(search.get("sampler"))
    if several and sampler in SAMPLERS and not SAMPLERS[sampler].several_objectives:
        *others, last = (name for name in LEARNING if SAMPLERS[name].several_objectives)
        rule, remedy = "be one for several objectives", f"name {', '.join(others)} or {last}, or have one objective"
        faults.append(Fault(what("search.sampler"), rule, f"{sampler}, which is for one", remedy))
    if search.get("warm_start") and "gain" in objectives:
        rule = "be left out with the objective gain: what a trial added to another study's ensemble says nothing here"
        faults.append(Fault(what("search.warm_start"), rule, "an older study", "take it out, or the objective gain"))
    return faults


def _grid_faults(
    search: Mapping[str, Any], space: Mapping[str, Distribution], fixed: Values, *, what: What
) -> list[Fault]:
    rule = "have finitely many values for the sampler grid"
    remedy = "make it categorical, int, or uniform with `step:`, or name another sampler"
    faults = [
        Fault(what(f"search_space.{key}"), rule, f"the type {distribution.type} without a step", remedy)
        for key, distribution in space.items()
        if not is_finite(distribution)
    ]
    if faults:
        return faults
    points = sum(1 for _ in islice(grid(space, fixed), MAX_GRID_POINTS + 1))
    if points > MAX_GRID_POINTS:
        rule, remedy = f"be another one where the grid has more than {MAX_GRID_POINTS:,} points", "name qmc or random"
        return [Fault(what("search.sampler"), rule, "grid", f"{remedy}, or make the search space coarser")]
    trials = search.get("trials", Search().trials)
    if type(trials) in (int, float) and trials > points:
        rule = f"be at most {points}, the points that the grid of the search space has"
        remedy = "lower it, or give the search space more values"
        return [Fault(what("search.trials"), rule, str(trials), remedy)]
    return []


def _enqueue_faults(
    enqueue: Any, space: Mapping[str, Distribution], fixed: Values, *, known: Mapping[str, Any], what: What
) -> list[Fault]:
    faults = []
    for index, point in enumerate(enqueue if isinstance(enqueue, list | tuple) else ()):
        for key, value in point.items() if isinstance(point, dict) else ():
            place = what(f"search.enqueue.{index}.{key}")
            if key in space:
                faults += _point_faults(place, key, value, space[key], {**_undrawn(fixed, space, point), **point})
            elif key not in known:
                otherwise = "take it out" if key in fixed else "add it to the search space, or take it out"
                remedy = nearest(key, known, otherwise=otherwise)
                faults.append(Fault(place, "be a key of the search space", repr(key), remedy))
    return faults


def _undrawn(fixed: Values, space: Mapping[str, Distribution], point: Values) -> Values:
    """The fixed values that the search space does not replace in a trial that begins with the point."""
    values = {**fixed, **point}
    return {key: value for key, value in fixed.items() if not (key in space and applies(space[key], values))}


def _point_faults(place: str, key: str, value: Any, distribution: Distribution, values: Values) -> list[Fault]:
    if violation := value_fault(distribution, value):
        rule, remedy = violation
        return [Fault(place, rule, quoted(value), remedy)]
    if not applies(distribution, values):
        needed = ", ".join(f"{name}: {' or '.join(map(written, wanted))}" for name, wanted in distribution.when.items())
        rule = f"be used with {needed}, without which {key} is not drawn"
        return [Fault(place, rule, "a point of other values", "add that, or take the key out of the point")]
    return []
