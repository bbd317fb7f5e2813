"""Which tokens are masked: single ones, whole words, or spans of words."""

from __future__ import annotations

import torch
from torch import Tensor

from tutti.config.pretraining import Masks
from tutti.training.pretraining.batches import TokenBatch

_SPAN_END, _LONGEST_SPAN = 0.2, 10  # of SpanBERT's spans in words: the geometric distribution's share, and a limit


def choose(groups: Tensor, maskable: Tensor, *, share: float, spans: Tensor | None = None) -> Tensor:
    """Draws tokens of each row, whole groups at a time, until about this share of the row's maskable ones is reached.

    A row with a maskable token has at least one group. Of the last group that reaches over the share, at least half
    must lie within it, so that the share is right on average.

    Args:
        groups: ``(rows, tokens)`` int64, the number of each token's group within its row, not falling.
        maskable: ``(rows, tokens)`` bool.
        spans: ``(rows, tokens)`` int64, the number of each group's span: spans are drawn, of the last one the first
            groups. None if each group is one.

    Returns:
        ``(rows, tokens)`` bool.

    Example:
        >>> groups = torch.tensor([[0, 1, 1, 2, 2, 3]])
        >>> chosen = choose(groups, torch.ones_like(groups, dtype=torch.bool), share=0.5)
        >>> bool(chosen[0, 1] == chosen[0, 2])
        True
    """
    scores = torch.rand(groups.shape).gather(1, groups if spans is None else spans).masked_fill(~maskable, 2.0)
    order = scores.argsort(dim=1, stable=True)  # maskable tokens first, groups together
    places = torch.empty_like(order).scatter_(1, order, torch.arange(groups.shape[1]).expand_as(order))
    sizes = torch.zeros_like(groups).scatter_add_(1, groups, maskable.long()).gather(1, groups)
    last = torch.full_like(groups, groups.shape[1])
    first = last.scatter_reduce(1, groups, torch.where(maskable, places, last), "amin").gather(1, groups)
    budget = (share * maskable.sum(1, keepdim=True)).round().clamp(min=1)
    return maskable & ((first == 0) | (first + sizes / 2 <= budget))


def choose_tokens(batch: TokenBatch, maskable: Tensor, *, share: float, masks: Masks) -> Tensor:
    """``(rows, tokens)`` bool, the tokens to be predicted. Draws from torch's default generator.

    Args:
        maskable: ``(rows, tokens)`` bool: neither special nor padding.
        masks: ``whole-words`` needs ``batch.starts``; ``spans`` are of words where it is there, else of tokens.
    """
    tokens = torch.arange(batch.ids.shape[1]).expand_as(batch.ids)
    if masks == "tokens":
        return choose(tokens, maskable, share=share)
    words = tokens if batch.starts is None else (batch.starts.long().cumsum(1) - 1).clamp(min=0)
    return choose(words, maskable, share=share, spans=_spans(words) if masks == "spans" else None)


def _spans(words: Tensor) -> Tensor:
    """Joins neighboring words to spans of random lengths. ``(rows, tokens)`` int64 to the same."""
    lengths = torch.empty(words.shape).geometric_(_SPAN_END).clamp(max=_LONGEST_SPAN).long()
    return torch.searchsorted(lengths.cumsum(1), words.contiguous(), right=True)
