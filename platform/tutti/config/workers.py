"""What ``training: {fsdp: true}`` asks of the rest of a study file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tutti.errors import Fault


def worker_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where weights are to be sharded and there is one worker, or where a search space varies it."""
    training, resources, space = (raw.get(key) for key in ("training", "resources", "search_space"))
    faults = [
        Fault(
            what(f"search_space.{key}"),
            "be the same in all trials, which differ in what is trained and not in how",
            "a key of the search space",
            "set it under training:",
        )
        for key in ("fsdp", "fsdp_config")
        if isinstance(space, dict) and key in space
    ]
    workers = resources.get("workers", 1) if isinstance(resources, dict) else 1
    if isinstance(training, dict) and training.get("fsdp") is True and workers == 1:
        rule, remedy = "be at least 2 with training.fsdp, which shares each weight out", "set it, or take fsdp out"
        faults.append(Fault(what("resources.workers"), rule, "1", remedy))
    return faults
