"""The head of texts: the language-model head, whose loss is that of the tokens to be written."""

from __future__ import annotations

import torch
from torch import Tensor

from tutti.modeling.kinds.protocol import HeadKind, LossOptions

WIDTH = 3
"""Of a row: the negative log-likelihood of its target, its number of tokens, and their loss under even labels."""


class TextHead(HeadKind):
    """Sums over the target's tokens, see ``WIDTH``; the loss of a row is the mean over its tokens."""

    def width(self, outputs: int) -> int:
        return WIDTH

    def predict(self, head: Tensor, outputs: int, *, scale: Tensor | None = None) -> Tensor:
        """``(rows, 2)``: log-likelihood and number of tokens."""
        return torch.stack([-head[:, 0], head[:, 1]], dim=1)

    def losses(self, head: Tensor, labels: Tensor, *, scale: Tensor, options: LossOptions) -> Tensor:
        likely, tokens, even = head.unbind(dim=1)
        return ((1 - options.smoothing) * likely + options.smoothing * even) / tokens.clamp(min=1)

    def divergences(self, first: Tensor, second: Tensor, *, scale: Tensor) -> Tensor:
        """Zeros: R-Drop would need the distributions of all tokens."""
        return torch.zeros_like(first[:, 0])
