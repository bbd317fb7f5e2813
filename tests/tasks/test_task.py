from __future__ import annotations

import json
from dataclasses import asdict

from tutti.tasks.task import Task


def test_a_task_comes_back_from_json_as_it_was() -> None:
    task = Task("TNEWS", class_names=("100", "101"), pair=False, metric="macro_f1", submission="competition")
    assert Task.from_dict(json.loads(json.dumps(asdict(task)))) == task
    assert (task.regression, task.outputs) == (False, 2)


def test_a_task_without_classes_is_a_regression_with_one_output() -> None:
    task = Task("STS-B", class_names=(), pair=True, metric="pearson_spearman", submission="glue")
    assert Task.from_dict(json.loads(json.dumps(asdict(task)))) == task
    assert (task.regression, task.outputs) == (True, 1)
