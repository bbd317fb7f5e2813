"""Rows of a task, and the type of the fixture that writes them to files."""

from __future__ import annotations

from collections.abc import Callable

from tutti.tasks.build import TaskSpec

MakeSpec = Callable[..., TaskSpec]
TRAIN = [(f"r{n}", f"text {n}", "yes" if n % 3 else "no") for n in range(30)]
SCORES = [(f"r{n}", f"text {n}", f"{n % 11 / 2:g}") for n in range(40)]
