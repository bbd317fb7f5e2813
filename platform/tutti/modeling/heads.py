"""Heads: pooling over tokens, dropout, and one linear layer to the classes of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


class AttentionPooling(nn.Module):
    """Structured self-attention (Lin et al. 2017, arXiv 1703.03130) in the static task-attentive form of
    arXiv 1804.08139: the weight of a token is the softmax over tokens of its dot product with one learned query.

    ``(rows, tokens, hidden)`` states and ``(rows, tokens)`` mask to ``(rows, hidden)``; padding gets no weight.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(hidden))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        scores = (states @ self.query).float().masked_fill(mask == 0, torch.finfo(torch.float32).min)
        return (states * scores.softmax(dim=1).to(states.dtype).unsqueeze(-1)).sum(dim=1)


class ClsPooling(nn.Module):
    """The state of the first token. Shapes as in AttentionPooling."""

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        return states[:, 0]


class MeanPooling(nn.Module):
    """The mean over tokens that are not padding. Shapes as in AttentionPooling."""

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        weights = mask.to(states.dtype).unsqueeze(-1)
        return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


POOLINGS: Mapping[str, Callable[[int], nn.Module]] = {
    "attention": AttentionPooling,
    "cls": lambda hidden: ClsPooling(),
    "mean": lambda hidden: MeanPooling(),
}


class Head(nn.Module):
    """``(rows, tokens, hidden)`` states and ``(rows, tokens)`` mask to ``(rows, classes)`` float32 logits.

    Args:
        pooling: ``attention``, ``cls`` or ``mean``.
        std: standard deviation of the initial weights, drawn from torch's default generator: seed it first.
    """

    def __init__(self, *, hidden: int, classes: int, pooling: str, dropout: float, std: float) -> None:
        super().__init__()
        self.pooling = POOLINGS[pooling](hidden)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(hidden, classes)
        nn.init.normal_(self.linear.weight, std=std)
        nn.init.zeros_(self.linear.bias)
        for query in self.pooling.parameters():
            nn.init.normal_(query, std=std)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        return self.linear(self.dropout(self.pooling(states, mask))).float()
