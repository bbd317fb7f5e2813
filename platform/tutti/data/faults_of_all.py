"""One step for all of several items, with the faults of all of them in one error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from tutti.errors import ConfigError, TaskFileError, UserError

Item = TypeVar("Item")
T = TypeVar("T")


def for_all(items: Mapping[str, Item], step: Callable[[Item], T]) -> dict[str, T]:
    """The step's result for each item. Collects the faults of all failing steps in one error."""
    results: dict[str, T] = {}
    errors: list[UserError] = []
    for name, item in items.items():
        try:
            results[name] = step(item)
        except (TaskFileError, ConfigError) as error:
            errors.append(error)
    if errors:
        error_class = ConfigError if all(isinstance(error, ConfigError) for error in errors) else TaskFileError
        raise error_class(*(fault for error in errors for fault in error.faults))
    return results
