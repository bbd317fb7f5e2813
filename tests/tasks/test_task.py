from __future__ import annotations

import json
from pathlib import Path

from tutti.tasks.task import Task


def test_a_task_comes_back_from_json_as_it_was() -> None:
    task = Task("TNEWS", names=("100", "101"), pair=False, metric="macro_f1", submission="competition")
    assert Task.from_dict(json.loads(json.dumps(task.to_dict(Path()))), Path()) == task
    assert (task.kind.name, task.outputs) == ("classes", 2)


def test_a_task_without_names_predicts_one_number() -> None:
    task = Task("STS-B", names=(), pair=True, metric="pearson_spearman", submission="glue")
    assert Task.from_dict(json.loads(json.dumps(task.to_dict(Path()))), Path()) == task
    assert (task.kind.name, task.outputs) == ("value", 1)
