"""What a study file asks for and no trial would do: each fault here is certain from the file alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any

from tutti.config.conditions import Values, applies, same, written
from tutti.config.points import grid
from tutti.config.space import Categorical, Distribution, LogUniform
from tutti.config.stages import STAGES, staged
from tutti.config.study import Search
from tutti.errors import Fault, counted

MOST_LOOKS = 10_000  # at what the keys that a condition names can be together

What = Callable[[str], str]


def distribution_faults(space: Mapping[str, Distribution], *, what: What) -> list[Fault]:
    """A fault for each step that leads nowhere, choice that is there twice, and condition that names nothing."""
    faults = []
    for key, distribution in space.items():
        if isinstance(distribution, Categorical):
            faults += _choice_faults(what(f"search_space.{key}.choices"), distribution.choices)
        elif not isinstance(distribution, LogUniform) and distribution.step is not None:
            low, high, step = (
                Decimal(str(given)) for given in (distribution.low, distribution.high, distribution.step)
            )
            if step > high - low:
                rule = f"be at most high - low, {high - low:g}, or every trial has the same value"
                remedy = "lower it, or widen the range"
                faults.append(Fault(what(f"search_space.{key}.step"), rule, f"{step:g}", remedy))
        if "when" in distribution.model_fields_set and not distribution.when:
            rule, remedy = "name another key with its values", "name one, or take `when:` out"
            faults.append(Fault(what(f"search_space.{key}.when"), rule, "an empty mapping", remedy))
    return faults


def _choice_faults(place: str, choices: tuple[Any, ...]) -> list[Fault]:
    return [
        Fault(f"{place}.{index}", "be no choice that stands before it", written(choice), "take one of the two out")
        for index, choice in enumerate(choices)
        if any(same(choice, before) for before in choices[:index])
    ]


def unmet_faults(
    space: Mapping[str, Distribution], fixed: Values, *, known: Mapping[str, Any], what: What
) -> list[Fault]:
    """A fault for each condition that holds in no trial, but for those that only wait for a key with such a fault.

    Args:
        space: the sound distributions, whose conditions have no other faults.
        known: all of them: a condition that leads to one that is not sound is not looked at.
    """
    unmet: dict[str, Fault] = {}
    for key in space:
        above = _above(key, space)
        if any(name in known and name not in space for each in (key, *above) for name in space[each].when):
            continue
        looks = list(islice(grid({name: space[name] for name in above}, fixed), MOST_LOOKS))
        if len(looks) < MOST_LOOKS and not any(applies(space[key], {**fixed, **drawn}) for drawn in looks):
            unmet[key] = _unmet(key, space, fixed, what=what)
    return [fault for key, fault in unmet.items() if not unmet.keys() & {*_above(key, space)}]


def _above(key: str, space: Mapping[str, Distribution]) -> list[str]:
    """The keys of the space that a key's condition leads to."""
    found: list[str] = []
    waiting = [key]
    while waiting:
        more = [name for name in space[waiting.pop()].when if name in space and name not in found]
        found += more
        waiting += more
    return found


def _unmet(key: str, space: Mapping[str, Distribution], fixed: Values, *, what: What) -> Fault:
    when = space[key].when
    asked = {name: " or ".join(map(written, wanted)) for name, wanted in when.items()}
    for name, wanted in when.items():
        if name not in space and not any(same(fixed[name], value) for value in wanted):
            rule = f"be {written(fixed[name])}, which training: sets {name} to in all trials"
            remedy = f"correct one of the two, or add {name} to the search space"
            return Fault(what(f"search_space.{key}.when.{name}"), rule, asked[name], remedy)
    got = ", ".join(f"{name}: {values}" for name, values in asked.items())
    remedy = "take one of these out, or see to the conditions of the keys that it names"
    return Fault(what(f"search_space.{key}.when"), "hold in some trial", f"{got}, which none has", remedy)


def schedule_faults(raw: Mapping[str, Any], *, what: What) -> list[Fault]:
    """A fault where a scheduler has nothing to say, because trials end before it would.

    Only where the epochs are the same for all trials. A default says nothing here, given or not: a study of one epoch
    need not name a scheduler, and a stored study has every default written out.
    """
    search, training, space, split = (
        given if isinstance(given, dict) else {}
        for given in map(raw.get, ("search", "training", "search_space", "split"))
    )
    scheduler = search.get("scheduler", "asha" if search.get("objectives", ["score"]) == ["score"] else "none")
    key = {"asha": "grace_epochs", "hyperband": "grace_epochs", "median": "grace_epochs", "pbt": "exchange_epochs"}
    name = key.get(scheduler, "") if isinstance(scheduler, str) else ""
    given, folds, evaluations = search.get(name), split.get("folds"), training.get("evals_per_epoch", 1)
    if not _is_count(given) or given == Search.model_fields[name].default:
        return []
    if folds is not None:
        evaluations, length, unit = 1, folds, "folds"
    else:
        length, unit = _epochs(training, space), "epochs"
    if not _is_count(length) or not _is_count(evaluations):
        return []
    # Of a trial's last evaluation nobody is asked: it is whole then.
    if math.ceil(given * evaluations - 1e-9) < length * evaluations:
        return []
    told = f"{counted(int(length), unit[:-1])} of each trial"
    if scheduler == "pbt":
        rule = f"be below the {told}, or they never meet"
        return [Fault(what("search.exchange_epochs"), rule, str(given), "lower it, or train for more epochs")]
    rule = f"be over before the last evaluation of the {told}, or {scheduler} never stops one"
    remedy = f"lower it, have more {unit}, or name the scheduler none"
    return [Fault(what("search.grace_epochs"), rule, f"{given:g}", remedy)]


def _epochs(training: Mapping[str, Any], space: Mapping[str, Any]) -> int | None:
    """After how many epochs, rounded up, each trial has gone through its stages; none where they may differ."""
    stages = training.get(STAGES) or ()
    if not isinstance(stages, list | tuple) or not all(isinstance(stage, dict) for stage in stages):
        return None
    if any(key.split(".")[-1] in ("num_train_epochs", "max_steps") for key in space):
        return None
    total = 0
    for keys in staged(training):
        epochs = keys.get("num_train_epochs", 3)
        if not _is_count(epochs) or keys.get("max_steps", -1) != -1:
            return None
        total += math.ceil(epochs)
    return total


def _is_count(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < math.inf
