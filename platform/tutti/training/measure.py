"""Loss and metrics of one task on its validation rows."""

from __future__ import annotations

import numpy as np

from tutti.data.encode import EncodedPart
from tutti.tasks.metrics import METRICS, metrics_to_log
from tutti.tasks.scorer import Scorer, metric_of
from tutti.tasks.task import Task


def measure(task: Task, part: EncodedPart, outputs: np.ndarray) -> tuple[float, dict[str, float]]:
    """The task's score, of which higher is better, and by name what is logged: its loss and its metrics as users know
    them.

    Args:
        outputs: of the task's kind.

    Raises:
        ConfigError: where a metric of the user's own fails.
    """
    labels = part.labels
    assert labels is not None
    values = {f"{task.name}/loss": task.kind.loss(outputs, labels)}
    for name in sorted({*metrics_to_log(task.kind_name), *task.report} - {task.metric}):
        metric = METRICS[name]
        values[f"{task.name}/{name}"] = metric.raw(Scorer.of(task, metric).score(labels, outputs))
    metric = metric_of(task)
    score = Scorer.of(task, metric).score(labels, outputs)
    return score, {**values, f"{task.name}/{task.metric}": metric.raw(score)}
