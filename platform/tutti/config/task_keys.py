"""Checks training keys against a study's tasks: weights of unknown tasks, and keys without effect on its tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tutti.config.metric_facts import kind_of
from tutti.config.raw import section, tasks_of
from tutti.config.stages import STAGES, WEIGHTS
from tutti.config.yaml_file import show
from tutti.errors import Fault, nearest

# Keys that need a task with probabilities, or several tasks; and the values of each key that have no effect.
_PROBABILITY_KEYS = ("focal_gamma", "label_smoothing_factor")
_CLASSIFICATION_KEYS = ("class_weights", *_PROBABILITY_KEYS)
_MULTI_TASK_KEYS = ("task_sampling", "loss_balancing")
_NUMBERS = {"value", "values"}  # kinds without classes
_OFF: Mapping[str, tuple[Any, ...]] = {
    "class_weights": (None,),
    "focal_gamma": (0,),
    "label_smoothing_factor": (0,),
    "ordered_head": ("softmax",),
    "task_sampling": ("proportional",),
    "loss_balancing": ("fixed", "uncertainty"),  # uncertainty scales the loss of a single task too
}


def task_key_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each weight of an unknown task, and for each key without effect on the study's tasks.

    Keys of single stages are checked too. Of the search space only weights are: the shipped ones are for any tasks.
    """
    tasks, training = raw.get("tasks"), section(raw, "training")
    if not isinstance(tasks, dict):
        return []
    kinds, ordered_head = set(map(kind_of, tasks_of(raw).values())), training.get("ordered_head")
    if "ordered_head" in section(raw, "search_space"):
        ordered_head = None
    stages = training.get(STAGES)
    stages = list(enumerate(stages)) if isinstance(stages, list | tuple) else []
    places = [("training", training), *((f"training.{STAGES}.{index}", stage) for index, stage in stages)]
    varied: dict[str, dict[str, Any]] = {key: {} for key in WEIGHTS}
    for key, distribution in section(raw, "search_space").items():
        first, _, task = str(key).partition(".")
        if task and first in varied:
            varied[first][task] = distribution
    places.append(("search_space", varied))
    return [
        replace(fault, what=what(f"{place}.{fault.what}"))
        for place, keys in places
        if isinstance(keys, dict)
        for fault in (*_weight_faults(keys, tasks), *_idle_faults(keys, kinds, ordered_head, task_count=len(tasks)))
    ]


def _weight_faults(keys: Mapping[str, Any], tasks: Mapping[str, Any]) -> Iterator[Fault]:
    for key in WEIGHTS:
        weights = keys.get(key)
        for name in weights if isinstance(weights, dict) else ():
            if name not in tasks:
                remedy = nearest(name, list(tasks), otherwise=f"name one of {', '.join(tasks)}")
                yield Fault(f"{key}.{name}", "name a task of the study", repr(name), remedy)


def _idle_faults(
    keys: Mapping[str, Any], kinds: Collection[str], ordered_head: Any, *, task_count: int
) -> Iterator[Fault]:
    idle: dict[str, str] = {}
    if kinds and "ordered" not in kinds:
        idle["ordered_head"] = "be left out where no task has ordered classes (`ordered: true`)"
    if kinds and not {*kinds} - {*_NUMBERS, "ordered"} and ordered_head == "regression":
        idle |= dict.fromkeys(_PROBABILITY_KEYS, "be left out with ordered_head: regression, which learns one number")
    if kinds and not {*kinds} - _NUMBERS:
        idle |= dict.fromkeys(_CLASSIFICATION_KEYS, "be left out where no task has classes or labels")
    if task_count == 1:
        idle |= dict.fromkeys(_MULTI_TASK_KEYS, "be left out of a study of one task, to which it does nothing")
    for key, rule in idle.items():
        if key in keys and keys[key] not in _OFF[key]:
            yield Fault(key, rule, show(keys[key]), "take it out")
