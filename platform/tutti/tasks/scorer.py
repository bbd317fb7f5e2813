"""A metric as it scores predictions of one task: what it is given of them, and what it says of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from tutti.tasks.kinds.protocol import Kind, Tuner
from tutti.tasks.metrics import METRICS, Metric, own_metric
from tutti.tasks.task import Task


@dataclass(frozen=True)
class Scorer:
    """Scores predictions of one kind.

    Attributes:
        kind: of the labels and predictions.
        function: takes labels, and decisions or outputs of the same rows; higher is better.
        decides: whether ``function`` takes decisions, or texts; otherwise it takes the outputs themselves.
        scale_free: whether the score stays the same if all predictions are scaled and shifted alike.
        of_row, of_sums: as of ``Metric``.
        tuner: finds the decisions at which a model alone is scored, for kinds that are ``tuned_alone``.
    """

    kind: Kind
    function: Callable[[np.ndarray, np.ndarray], float]
    decides: bool = True
    scale_free: bool = False
    tuner: Tuner | None = None
    of_row: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    of_sums: Callable[[np.ndarray], float] | None = None

    @classmethod
    def of(cls, task: Task, metric: Metric | None = None) -> Scorer:
        """The scorer of a task, by its own metric or another one."""
        metric = metric_of(task) if metric is None else metric
        function = partial(metric.score, outputs=task.outputs)
        decides = metric.needs in ("decisions", "texts")
        tuner = tuner_of(task, metric) if task.kind.tuned_alone else None
        of_row = partial(metric.of_row, outputs=task.outputs) if metric.of_row else None
        return cls(
            task.kind,
            function,
            decides=decides,
            scale_free=metric.scale_free,
            tuner=tuner,
            of_row=of_row,
            of_sums=metric.of_sums,
        )

    def judged(self, outputs: np.ndarray, decision: np.ndarray | None = None) -> np.ndarray:
        """What is scored of outputs, with any further axes in front: decisions, or the outputs themselves."""
        return self.kind.decide(outputs, decision) if self.decides else outputs

    def score(self, labels: np.ndarray, outputs: np.ndarray) -> float:
        """The score of a model's outputs for the rows of these labels."""
        return self(labels, self.judged(outputs, self.alone(labels, outputs)))

    def alone(self, labels: np.ndarray, outputs: np.ndarray) -> np.ndarray | None:
        """The parameters of the decisions at which a model alone is scored; none for most kinds."""
        return self.tuner(outputs, labels) if self.tuner and len(labels) else None

    def __call__(self, labels: np.ndarray, judged: np.ndarray) -> float:
        """The score of what ``judged`` returned for the rows of these labels."""
        return self.function(labels, judged)


def tuner_of(task: Task, metric: Metric) -> Tuner | None:
    """What tunes a task's decisions for a metric; none where it gains nothing from that, or takes no decisions."""
    is_known = METRICS.get(metric.name) is metric  # a metric of the user's own may bear any name
    return task.kind.tuner(metric.name if is_known else "") if metric.needs == "decisions" else None


def metric_of(task: Task) -> Metric:
    """The metric that decides in a task.

    Raises:
        ConfigError: where it is the user's own and cannot be loaded.
    """
    return METRICS[task.metric] if task.own_metric is None else own_metric(task.own_metric)
