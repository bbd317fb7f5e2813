"""The study's score: the mean of its tasks' scores, weighted where the study file weighs its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tutti.tasks.task import Task


def weighted_mean(scores: Sequence[float], weights: Sequence[float]) -> float:
    """The mean of the tasks' scores, or of other values of theirs; with equal weights the plain mean.

    Args:
        weights: one for each task, at least 0, and not all 0.
    """
    if len(set(weights)) == 1:  # to the last bit what studies without weights have
        return float(np.mean(scores))
    return float(np.average(scores, weights=weights))


def study_score(by_task: Mapping[str, float], tasks: Sequence[Task]) -> float:
    """``weighted_mean`` of the tasks' scores, by the weights of the tasks themselves."""
    return weighted_mean([by_task[task.name] for task in tasks], [task.weight for task in tasks])
