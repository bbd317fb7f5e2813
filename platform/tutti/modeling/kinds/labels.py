"""The head of several labels: a logit for each, independent of the others."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn.functional import logsigmoid

from tutti.modeling.kinds.protocol import HeadKind, LossOptions


class LabelsHead(HeadKind):
    """Logits of a sigmoid; the loss of a row is the mean over its known labels of the binary cross-entropy."""

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        return head.sigmoid()

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        """``(rows, k)`` logits to ``(rows,)`` losses.

        Args:
            labels: ``(rows, k)`` of 0, 1, a probability between, or NaN where one is missing; or ``(rows, k, 2)``
                weights of the terms for no and for yes, both 0 where one is missing.
        """
        if labels.ndim == 2:
            terms, known = labels.nan_to_num(), ~labels.isnan()
            no, yes = (1 - terms) * known, terms * known
            count = known.sum(dim=1).clamp(min=1)
        else:
            no, yes = labels.unbind(dim=2)
            count = ((no + yes) > 0).sum(dim=1).clamp(min=1)
        if options.smoothing:
            half = options.smoothing / 2 * (no + yes)
            no, yes = (1 - options.smoothing) * no + half, (1 - options.smoothing) * yes + half
        log_yes, log_no = logsigmoid(head), logsigmoid(-head)
        if options.focal_gamma:
            yes = yes * log_no.exp().clamp(min=1e-8) ** options.focal_gamma
            no = no * log_yes.exp().clamp(min=1e-8) ** options.focal_gamma
        return -(yes * log_yes + no * log_no).sum(dim=1) / count

    def balanced(self, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights as they are, and ``(rows, k, 2)`` float32 weights of the terms for no and for yes."""
        terms = np.nan_to_num(np.stack([1 - labels, labels], axis=2))
        totals = np.einsum("r,rkt->kt", weights.astype(np.float64), terms)
        occurring = (totals > 0).sum(axis=1, keepdims=True).clip(min=1)
        factors = totals.sum(axis=1, keepdims=True) / (occurring * np.where(totals > 0, totals, 1))
        return weights, (terms * factors).astype(np.float32)

    def divergences(self, first: Tensor, second: Tensor, *, scale: Tensor) -> Tensor:
        """The mean over labels of both Kullback-Leibler divergences' mean, as of the loss."""
        return ((first.sigmoid() - second.sigmoid()) * (first - second)).mean(dim=1) / 2
