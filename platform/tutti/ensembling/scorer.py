"""A task's metric as ensembles use it: what it is given of predictions, and what it says of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tutti.tasks.kinds.protocol import Kind


@dataclass(frozen=True)
class Scorer:
    """Scores predictions of one kind.

    Attributes:
        kind: of the labels and predictions.
        function: takes labels, and decisions or outputs of the same rows; higher is better.
        decides: whether ``function`` takes decisions; otherwise it takes the outputs themselves.
        scale_free: whether the score does not depend on the scale of values.
    """

    kind: Kind
    function: Callable[[np.ndarray, np.ndarray], float]
    decides: bool = True
    scale_free: bool = False

    def judged(self, outputs: np.ndarray, decision: np.ndarray | None = None) -> np.ndarray:
        """What is scored of outputs, with any further axes in front: decisions, or the outputs themselves."""
        return self.kind.decide(outputs, decision) if self.decides else outputs

    def __call__(self, labels: np.ndarray, judged: np.ndarray) -> float:
        """The score of what ``judged`` returned for the rows of these labels."""
        return self.function(labels, judged)
