"""Training keys that are about a study's tasks: those that name one, and those that its tasks have no use for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

from tutti.config.stages import STAGES
from tutti.config.study import ClassMetric, TaskConfig
from tutti.config.yaml_file import show
from tutti.errors import Fault, nearest

# Keys that need tasks of classes, or several tasks, and the values of each that ask for nothing.
_OF_CLASSES = ("class_weights", "focal_gamma", "label_smoothing_factor")
_OF_SEVERAL = ("task_sampling", "loss_balancing")
_OFF: Mapping[str, tuple[Any, ...]] = {
    "class_weights": (None,),
    "focal_gamma": (0,),
    "label_smoothing_factor": (0,),
    "task_sampling": ("proportional",),
    "loss_balancing": ("fixed", "uncertainty"),  # uncertainty scales the loss of one task too
}


def task_key_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each weight of a task that the study does not have, and for each key that does nothing to those it
    has, of all stages or of one.

    A search space may vary what does nothing: those that come with Tutti are for any tasks.
    """
    tasks, training = raw.get("tasks"), raw.get("training")
    if not isinstance(tasks, dict) or not isinstance(training, dict):
        return []
    stages = training.get(STAGES)
    stages = list(enumerate(stages)) if isinstance(stages, list | tuple) else []
    places = [("training", training), *((f"training.{STAGES}.{index}", stage) for index, stage in stages)]
    return [
        replace(fault, what=what(f"{place}.{fault.what}"))
        for place, keys in places
        if isinstance(keys, dict)
        for fault in (*_weight_faults(keys, tasks), *_idle_faults(keys, tasks))
    ]


def _weight_faults(keys: Mapping[str, Any], tasks: Mapping[str, Any]) -> Iterator[Fault]:
    for key in ("task_weights", "sampling_weights"):
        weights = keys.get(key)
        for name in weights if isinstance(weights, dict) else ():
            if name not in tasks:
                remedy = nearest(name, list(tasks), otherwise=f"name one of {', '.join(tasks)}")
                yield Fault(f"{key}.{name}", "name a task of the study", repr(name), remedy)


def _idle_faults(keys: Mapping[str, Any], tasks: Mapping[str, Any]) -> Iterator[Fault]:
    default = TaskConfig.model_fields["metric"].default
    metrics = [task.get("metric", default) for task in tasks.values() if isinstance(task, dict)]
    idle: dict[str, str] = {}
    if metrics and not any(metric in get_args(ClassMetric) for metric in metrics):
        idle |= dict.fromkeys(_OF_CLASSES, "be left out where no task has classes")
    if len(tasks) == 1:
        idle |= dict.fromkeys(_OF_SEVERAL, "be left out of a study of one task, to which it does nothing")
    for key, rule in idle.items():
        if key in keys and keys[key] not in _OFF[key]:
            yield Fault(key, rule, show(keys[key]), "take it out")
