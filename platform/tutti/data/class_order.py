"""Whether the order of a task's classes is known, where it counts."""

from __future__ import annotations

from collections.abc import Sequence

from tutti.errors import ConfigError, Fault
from tutti.tasks.build import TaskSpec
from tutti.tasks.kinds.classes import has_own_order


def check_order(spec: TaskSpec, names: Sequence[str]) -> None:
    """Checks that classes with an order have it from the study file, from the data set, or by what they are.

    Raises:
        ConfigError: if the study file lists others, or lists none and they are words.
    """
    what, source = f"tasks.{spec.name}.ordered", spec.sources["train"]
    if spec.order and set(spec.order) != set(names):
        rule = f"list the classes of {spec.layout.origin(source)}, {', '.join(names)}"
        raise ConfigError(Fault(what, rule, ", ".join(spec.order), "correct the list"))
    if spec.kind.needs_order and not (spec.order or spec.layout.class_order(source) or has_own_order(names)):
        rule, got = "list the classes from low to high, since they are words", f"true, with {', '.join(names[:5])}"
        raise ConfigError(Fault(what, rule, got, "write it like `ordered: [low, medium, high]`"))
