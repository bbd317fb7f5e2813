"""Loss and metrics of one task on its validation rows."""

from __future__ import annotations

import numpy as np

from tutti.data.encode import EncodedPart
from tutti.tasks.metrics import score
from tutti.tasks.task import Task


def measure(task: Task, part: EncodedPart, outputs: np.ndarray) -> dict[str, float]:
    """``TASK/loss`` (mean negative log-likelihood, or mean squared error) and the task's metrics.

    Args:
        outputs: of the task's kind.
    """
    labels = part.labels
    assert labels is not None
    values = {f"{task.name}/loss": task.kind.loss(outputs, labels)}
    for metric in sorted({*task.kind.metrics, task.metric}):
        values[f"{task.name}/{metric}"] = score(metric, labels=labels, predicted=outputs)
    return values
