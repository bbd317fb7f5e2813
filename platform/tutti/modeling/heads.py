"""Task heads: layer mixing, pooling over tokens, dropout, and a linear layer to the outputs of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class AttentionPooling(nn.Module):
    """Structured self-attention (Lin et al. 2017, arXiv 1703.03130) in the static task-attentive form of
    arXiv 1804.08139: token weights are the softmax over tokens of the dot product with one learned query.

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
    """The token means u and v of a pair's two texts, as ``(u, v, |u - v|, u * v)`` (InferSent, Conneau et al. 2017,
    arXiv 1705.02364). Unlike one mean over both texts, this exposes their similarity to the linear layer.

    ``(rows, tokens, hidden)`` states, ``(rows, tokens)`` mask and token types, 1 for the second text, to
    ``(rows, 4 * hidden)`` float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanPooling()

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        if types is None:
            raise ValueError("the pooling pair takes token types, which tell a pair's two texts apart")
        states = states.float()  # bfloat16 would lose the difference of nearly equal means
        second = mask * (types == 1)
        u, v = self.mean(states, mask - second), self.mean(states, second)
        return torch.cat([u, v, (u - v).abs(), u * v], dim=1)


def _pooling(name: str, hidden: int, *, pair: bool) -> tuple[nn.Module, int]:
    """A pooling module and the width of its output."""
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
    """The weighted sum of several layers' states, with learned softmax weights, uniform at first (ELMo, arXiv
    1802.05365).

    A sequence of ``(rows, tokens, hidden)`` states to a single one of that shape.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        shares = self.weights.softmax(dim=0)
        return sum((share * state for share, state in zip(shares, states, strict=True)), torch.zeros_like(states[0]))


@dataclass(frozen=True)
class HeadOptions:
    """The options of all heads of a model.

    Attributes:
        pooling: ``attention``, ``cls``, ``mean`` or ``pair``; with ``pair``, tasks with single texts use ``mean``.
        layers: number of last encoder layers that are mixed before pooling; 1 uses the last layer only.
        dropout: dropout probability before the linear layer.
        dropout_samples: multi-sample dropout (arXiv 1905.09788): the training output is the mean over this many
            dropout masks. (The paper averages their losses instead.)
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
        std: standard deviation of the initial weights, drawn from torch's default generator (seed it first).
        regression: whether the output is ``value * scale + shift``. These buffers are the standard deviation and the
            mean of the training labels; set them with ``fit_labels``.
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
        """Sets shift and scale from ``(rows,)`` training labels and weights: labels of any scale train alike."""
        mean = (labels * weights).sum() / weights.sum()
        self.shift.copy_(mean)
        self.scale.copy_((((labels - mean).square() * weights).sum() / weights.sum()).sqrt().clamp(min=1e-6))

    def forward(self, states: Sequence[Tensor], mask: Tensor, types: Tensor | None = None) -> Tensor:
        pooled = self.pooling(states[-1] if self.mix is None else self.mix(states), mask, types).float()
        with torch.autocast(pooled.device.type, enabled=False):  # bfloat16 has only 8 bits of precision for outputs
            if self.training and self._samples > 1:
                outputs = torch.stack([self.linear(self.dropout(pooled)) for _ in range(self._samples)]).mean(dim=0)
            else:
                outputs = self.linear(self.dropout(pooled))
        return outputs * self.scale + self.shift if self._regression else outputs
