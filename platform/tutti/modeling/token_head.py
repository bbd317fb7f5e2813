"""The head of tasks whose words or characters have tags."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tutti.modeling.crf import new_transitions
from tutti.modeling.heads import HeadOptions, LayerMix
from tutti.modeling.kinds.protocol import HeadKind
from tutti.modeling.kinds.tokens import LanesHead, TokensHead, lanes_of


class TokenHead(nn.Module):
    """States of the last ``options.layers`` layers, each ``(inputs, tokens, hidden)``, to ``(rows, units, tags)``
    float32: see ``tutti.modeling.kinds.tokens``.

    A unit's state is that of its first or last token, or their mean (``options.word_pooling``).

    Where entities may overlap, ``(rows, types * words, 3)``: each word has a unit for each type, see ``LanesHead``.

    While it trains with several ``options.dropout_samples`` it gives ``(samples, rows, units, tags)``.

    Args:
        std: standard deviation of the initial weights, drawn from torch's default generator (seed it first).
        outputs: the number of tags.
        marks: whether tags mark spans, so that a chain allows some tags after some others alone.
    """

    is_bi_encoder = False
    scale: Tensor

    def __init__(
        self, *, hidden: int, outputs: int, options: HeadOptions, std: float, kind: HeadKind, marks: bool = True
    ) -> None:
        super().__init__()
        self.kind = kind
        self.mix = LayerMix(options.layers) if options.layers > 1 else None
        self.pooling_dropout = nn.Dropout(options.pooling_dropout)
        self.dropout = nn.Dropout(options.dropout)
        self.linear = nn.Linear(hidden, outputs)
        self._samples, self._pooling = options.dropout_samples, options.word_pooling
        if options.tags == "crf":
            self.scale = nn.Parameter(new_transitions(outputs, marks=marks))
        else:
            self.register_buffer("scale", torch.ones(()), persistent=False)
        nn.init.normal_(self.linear.weight, std=std)
        nn.init.zeros_(self.linear.bias)

    @torch.no_grad()
    def fit_labels(self, labels: Tensor, weights: Tensor) -> None:
        """Lets the tags begin as likely as they are (Lin et al. 2017, arXiv 1708.02002, 4.1).

        Nearly all of them are O, which the weights would take hundreds of steps to learn before anything else.
        """
        assert isinstance(self.kind, TokensHead)
        if (prior := self.kind.prior(labels, self.linear.out_features)) is not None:
            self.linear.bias.copy_(prior)

    def forward(self, states: Sequence[Tensor], units: Tensor, windows: Tensor | None = None) -> Tensor:
        """Args:
        units: ``(rows, units, 3)`` int64: the window of each unit, and the places of its first and last token there; -1
            for units that a row does not have.
        windows: ``(rows,)`` int64, how many of the inputs are windows of each row, in order; None for one each.
        """
        mixed = self.pooling_dropout(states[-1] if self.mix is None else self.mix(states)).float()
        first_input = torch.arange(len(units), device=units.device) if windows is None else windows.cumsum(0) - windows
        absent = units[..., :1] < 0
        if isinstance(self.kind, LanesHead):  # those of the first type; they are the same for others
            units = units[:, : -(-units.shape[1] // (self.linear.out_features // 2))]
        window, first, last = units.clamp(min=0).unbind(dim=2)
        inputs = first_input.unsqueeze(1) + window
        match self._pooling:
            case "first":
                pooled = mixed[inputs, first]
            case "last":
                pooled = mixed[inputs, last]
            case _:  # by sums up to each token, of which a GPU needs no number of tokens beforehand
                sums = torch.nn.functional.pad(mixed.cumsum(dim=1), (0, 0, 1, 0))
                pooled = (sums[inputs, last + 1] - sums[inputs, first]) / (last + 1 - first).unsqueeze(2)
        with torch.autocast(pooled.device.type, enabled=False):
            if self.training and self._samples > 1:
                return torch.stack([self._logits(pooled, absent) for _ in range(self._samples)])
            return self._logits(pooled, absent)

    def _logits(self, pooled: Tensor, absent: Tensor) -> Tensor:
        logits = self.linear(self.dropout(pooled))
        if isinstance(self.kind, LanesHead):
            rows = torch.arange(len(logits), device=logits.device).unsqueeze(1)
            word, lane = lanes_of(~absent[..., 0], self.linear.out_features // 2)
            tags = torch.zeros_like(lane), 2 * lane + 1, 2 * lane + 2
            logits = torch.stack([logits[rows, word, tag] for tag in tags], dim=2)
        return logits.masked_fill(absent, 0.0)
