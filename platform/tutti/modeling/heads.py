"""Heads: a mix of layers, pooling over tokens, dropout, and one linear layer to the outputs of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        scores = (states @ self.query).float().masked_fill(mask == 0, torch.finfo(torch.float32).min)
        return (states * scores.softmax(dim=1).to(states.dtype).unsqueeze(-1)).sum(dim=1)


class ClsPooling(nn.Module):
    """The state of the first token. Shapes as in AttentionPooling."""

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        return states[:, 0]


class MeanPooling(nn.Module):
    """The mean over tokens that are not padding. Shapes as in AttentionPooling."""

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        weights = mask.to(states.dtype).unsqueeze(-1)
        return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class PairPooling(nn.Module):
    """The means u and v over the tokens of a pair's two texts, as ``(u, v, |u - v|, u * v)`` (InferSent, Conneau et
    al. 2017, arXiv 1705.02364): how alike two texts are need not go through one mean of both.

    ``(rows, tokens, hidden)`` states, ``(rows, tokens)`` mask and token types, 1 for the second text, to
    ``(rows, 4 * hidden)`` float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanPooling()

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        if types is None:
            raise ValueError("the pooling pair takes token types, which tell a pair's two texts apart")
        states = states.float()  # of means that are nearly equal, bfloat16 would leave no difference
        second = mask * (types == 1)
        u, v = self.mean(states, mask - second), self.mean(states, second)
        return torch.cat([u, v, (u - v).abs(), u * v], dim=1)


def _pooling(name: str, hidden: int, *, pair: bool) -> tuple[nn.Module, int]:
    """A pooling and how wide its vectors are."""
    match name:
        case "attention":
            return AttentionPooling(hidden), hidden
        case "cls":
            return ClsPooling(), hidden
        case "pair" if pair:
            return PairPooling(), 4 * hidden
        case "mean" | "pair":
            return MeanPooling(), hidden
        case _:
            raise ValueError(f"there is no pooling {name!r}")


class LayerMix(nn.Module):
    """The sum of the states of several layers with learned weights (ELMo, arXiv 1802.05365): a softmax, even at first.

    A sequence of ``(rows, tokens, hidden)`` states to one of that shape.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        shares = self.weights.softmax(dim=0)
        return sum((share * state for share, state in zip(shares, states, strict=True)), torch.zeros_like(states[0]))


@dataclass(frozen=True)
class HeadOptions:
    """How every head of a model is made.

    Attributes:
        pooling: ``attention``, ``cls``, ``mean`` or, of rows with two texts, ``pair``; single texts then have ``mean``.
        layers: the last so many layers of the encoder are mixed before pooling; 1 takes the last alone.
        dropout: probability in front of the linear layer.
        dropout_samples: multi-sample dropout (arXiv 1905.09788): while training, the output is the mean over so many
            masks. (The paper takes the mean of their losses.)
    """

    pooling: str = "attention"
    layers: int = 1
    dropout: float = 0.1
    dropout_samples: int = 1


class Head(nn.Module):
    """States of the last ``options.layers`` layers, each ``(rows, tokens, hidden)``, and ``(rows, tokens)`` mask and
    token types to ``(rows, outputs)`` float32: logits, or values of a regression.

    Args:
        pair: whether a row has two texts.
        std: standard deviation of the initial weights, drawn from torch's default generator: seed it first.
        regression: the output is ``value * scale + shift``, where these two buffers are the spread and the mean of the
            training labels: set them with ``fit_labels``.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        *,
        hidden: int,
        outputs: int,
        options: HeadOptions,
        std: float,
        pair: bool = False,
        regression: bool = False,
    ) -> None:
        super().__init__()
        self.mix = LayerMix(options.layers) if options.layers > 1 else None
        self.pooling, width = _pooling(options.pooling, hidden, pair=pair)
        self.dropout = nn.Dropout(options.dropout)
        self.linear = nn.Linear(width, outputs)
        self._samples = options.dropout_samples
        self._regression = regression
        if regression:
            self.register_buffer("shift", torch.zeros(()))
            self.register_buffer("scale", torch.ones(()))
        nn.init.normal_(self.linear.weight, std=std)
        nn.init.zeros_(self.linear.bias)
        for query in self.pooling.parameters():
            nn.init.normal_(query, std=std)

    def fit_labels(self, labels: Tensor, weights: Tensor) -> None:
        """Takes mean and spread of the training labels, ``(rows,)`` each, so that any scale is learnt alike."""
        mean = (labels * weights).sum() / weights.sum()
        self.shift.copy_(mean)
        self.scale.copy_((((labels - mean).square() * weights).sum() / weights.sum()).sqrt().clamp(min=1e-6))

    def forward(self, states: Sequence[Tensor], mask: Tensor, types: Tensor | None = None) -> Tensor:
        pooled = self.pooling(states[-1] if self.mix is None else self.mix(states), mask, types).float()
        with torch.autocast(pooled.device.type, enabled=False):  # values and confidences in more than 8 bits
            if self.training and self._samples > 1:
                made = torch.stack([self.linear(self.dropout(pooled)) for _ in range(self._samples)]).mean(dim=0)
            else:
                made = self.linear(self.dropout(pooled))
        return made * self.scale + self.shift if self._regression else made
