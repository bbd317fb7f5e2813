"""The heads of tags: logits for each word or character, alone or in a chain."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from tutti.modeling.crf import marginals, negative_log_likelihood
from tutti.modeling.kinds.protocol import HeadKind, LossOptions


class TokensHead(HeadKind):
    """Logits ``(rows, units, tags)``, 0 for units that a row does not have; the loss is the mean cross-entropy.

    Rows are weighted by their number of units, so that all units count the same: see ``EncodedPart.weights``.
    """

    axes: ClassVar[int] = 3

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        return head.softmax(dim=-1).masked_fill(~_present(head), float("nan"))

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        """``(rows, units, tags)`` logits and ``(rows, units)`` tags, below 0 where none is known."""
        flat, known = head.transpose(1, 2), (labels >= 0).sum(dim=1).clamp(min=1)
        masked = labels.long().clamp(min=-1)
        smoothing, gamma = options.smoothing, options.focal_gamma
        losses = cross_entropy(flat, masked, reduction="none", ignore_index=-1, label_smoothing=smoothing)
        if gamma:
            likely = cross_entropy(flat, masked, reduction="none", ignore_index=-1)
            losses = losses * (1 - (-likely).exp()).clamp(min=1e-8) ** gamma
        return losses.sum(dim=1) / known

    def prior(self, labels: Tensor, width: int) -> Tensor | None:
        """``(width,)`` biases at which tags are as likely as among ``(rows, units)`` labels, each counted once more.

        None for zeros.
        """
        counts = torch.bincount(labels[labels >= 0].flatten(), minlength=width) + 1
        return (counts / counts.sum()).log()

    def balanced(self, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows weigh as the mean over their units of the inverse square root of the tag's frequency: rows with rare
        entities weigh more. The weights' mean is unchanged.
        """
        known = labels >= 0
        counts = np.bincount(labels[known])
        of_tags = np.where(known, (1 / np.sqrt(np.maximum(counts, 1)))[np.maximum(labels, 0)], 0.0)
        factors = of_tags.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        heavier = weights * factors
        return (heavier * (weights.sum(dtype=np.float64) / max(heavier.sum(), 1e-12))).astype(np.float32), labels

    def divergences(self, first: Tensor, second: Tensor, *, scale: Tensor) -> Tensor:
        """The mean over units of both Kullback-Leibler divergences."""
        units = _present(first)[..., 0].sum(dim=1).clamp(min=1)
        first, second = first.log_softmax(dim=-1), second.log_softmax(dim=-1)
        forward = kl_div(first, second, reduction="none", log_target=True).sum(dim=(1, 2))
        backward = kl_div(second, first, reduction="none", log_target=True).sum(dim=(1, 2))
        return (forward + backward) / 2 / units


class LanesHead(TokensHead):
    """Logits of O, B and I of each word and type, ``(rows, types * words, 3)``: see ``tutti.tasks.kinds.overlapping``.
    What a word is of one type does not depend on what it is of another.
    """

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        own = super().predict(head, outputs)
        _, lane = lanes_of(_present(head)[..., 0], outputs // 2)
        tags = torch.stack([torch.zeros_like(lane), 2 * lane + 1, 2 * lane + 2], dim=2)
        spread = own.new_zeros(*own.shape[:2], outputs).scatter(2, tags, own)
        return spread.masked_fill(~_present(head), float("nan"))

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        own = torch.where(labels > 0, 2 - labels % 2, labels)  # of B and I of any type
        return super().losses(head, own, scale=scale, options=options)

    def prior(self, labels: Tensor, width: int) -> Tensor:
        """The same of each type by itself: 0 for O, for B and I the logarithm of their odds against O of their type."""
        counts = torch.bincount(labels[labels >= 0].flatten(), minlength=width)
        words, marked = counts.sum() / (width // 2), counts[1:].view(-1, 2)
        outside = (words - marked.sum(dim=1, keepdim=True)).clamp(min=0)
        return torch.cat([torch.zeros(1), ((marked + 1) / (outside + 1)).log().flatten()])


def lanes_of(present: Tensor, types: int) -> tuple[Tensor, Tensor]:
    """The word and the type of each unit, ``(rows, units)`` int64 each; some of those for units that are not present.

    Args:
        present: ``(rows, units)`` bool.
    """
    words = (present.sum(dim=1, keepdim=True) // types).clamp(min=1)
    places = torch.arange(present.shape[1], device=present.device)
    return places % words, (places // words).clamp(max=types - 1)


class ChainHead(TokensHead):
    """Scores of a linear chain, whose transitions are the head's ``scale``; probabilities are their marginals."""

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        assert scale is not None
        present = _present(head)
        probabilities = marginals(head, present[..., 0].sum(dim=1), scale)
        return probabilities.masked_fill(~present, float("nan"))

    def prior(self, labels: Tensor, width: int) -> None:
        """Zeros: the shares of tags were tried without a chain alone."""

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        """The negative log-likelihood of a row's tags, divided by their number; label smoothing has no part in it."""
        lengths = _present(head)[..., 0].sum(dim=1)
        with torch.autocast(head.device.type, enabled=False):
            losses = negative_log_likelihood(head.float(), labels.long(), lengths, scale.float())
        return losses / (labels >= 0).sum(dim=1).clamp(min=1)


def _present(head: Tensor) -> Tensor:
    """``(rows, units, 1)`` bool: the head gives exactly 0 for units that a row does not have."""
    return (head != 0).any(dim=-1, keepdim=True)
