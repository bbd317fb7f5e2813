from __future__ import annotations

import pytest

from tutti.tasks.task import Task


@pytest.fixture
def odd_tasks() -> tuple[Task, ...]:
    """Two tasks whose names a mapping of modules could not hold as they are: a dot, and the name of its method."""
    return (
        Task(name="news.v1", names=("100", "101", "102"), pair=False, metric="macro_f1", submission="csv"),
        Task(name="keys", names=("no", "yes"), pair=False, metric="accuracy", submission="csv"),
    )
