"""Loss and metrics of one task on its validation rows."""

from __future__ import annotations

import numpy as np

from tutti.data.encode import EncodedPart
from tutti.tasks.metrics import score
from tutti.tasks.task import Task


def measure(task: Task, part: EncodedPart, outputs: np.ndarray) -> dict[str, float]:
    """``TASK/loss`` (mean negative log-likelihood, or mean squared error) and the task's metrics.

    Args:
        outputs: ``(rows, classes)`` probabilities, or ``(rows,)`` values of a regression.
    """
    labels = part.labels
    assert labels is not None
    if task.regression:
        loss, metrics = np.square(outputs - labels, dtype=np.float64).mean(), {"pearson", "spearman", task.metric}
    else:
        likelihoods = outputs[np.arange(len(labels)), labels].astype(np.float64)
        loss, metrics = -np.log(likelihoods.clip(min=1e-30)).mean(), {"macro_f1", "accuracy", task.metric}
    values = {f"{task.name}/loss": float(loss)}
    for metric in sorted(metrics):
        values[f"{task.name}/{metric}"] = score(metric, labels=labels, predicted=outputs)
    return values
