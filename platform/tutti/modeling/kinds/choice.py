"""The head of choices: a score for each of a row's candidates."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tutti.modeling.kinds.classes import ClassesHead
from tutti.modeling.kinds.protocol import LossOptions

ABSENT = -1e30
"""The score of a candidate that a row does not have: its probability is exactly 0."""


class ChoiceHead(ClassesHead):
    """Scores of a softmax over a row's own candidates; the loss is the row's cross-entropy."""

    of_inputs: ClassVar[bool] = True

    def width(self, outputs: int) -> int:
        return 1

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        """As of classes. Label smoothing is over the row's own candidates.

        Args:
            head: ``(rows, most candidates)``, ``ABSENT`` where a row has fewer.
            labels: ``(rows,)`` places of the right candidates, or ``(rows, most candidates)`` probabilities.
        """
        present = head > ABSENT / 2
        labels = one_hot(labels, head.shape[1]).to(head.dtype) if labels.ndim == 1 else labels
        logs = head.log_softmax(dim=1).masked_fill(~present, 0.0)
        mean = logs.sum(dim=1, keepdim=True) / present.sum(dim=1, keepdim=True)
        by_candidate = -(1 - options.smoothing) * logs - options.smoothing * mean
        if options.focal_gamma:
            by_candidate = by_candidate * (1 - logs.exp()).clamp(min=1e-8) ** options.focal_gamma
        return (labels * by_candidate).sum(dim=1)

    def balanced(self, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As they are: a place is no class that could be rare."""
        return weights, labels


class LettersHead(ChoiceHead):
    """Scores of the letters of a row's candidates, which are all in one input."""

    of_inputs: ClassVar[bool] = False

    def width(self, outputs: int) -> int:
        return outputs


def by_row(scores: Tensor, counts: Tensor, outputs: int) -> Tensor:
    """``(..., inputs)`` scores of candidates to ``(..., rows, outputs)``, with ``ABSENT`` where a row has fewer.

    Args:
        counts: ``(rows,)`` int64, how many of the inputs, in order, are each row's.
    """
    rows = torch.arange(len(counts), device=scores.device).repeat_interleave(counts, output_size=scores.shape[-1])
    places = torch.arange(scores.shape[-1], device=scores.device) - (counts.cumsum(0) - counts)[rows]
    table = scores.new_full((*scores.shape[:-1], len(counts), outputs), ABSENT)
    table[..., rows, places] = scores
    return table
