"""Task heads: layer mixing, pooling over tokens, dropout, and a linear layer to the outputs of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tutti.modeling.decoders import last_tokens
from tutti.modeling.kinds.choice import ABSENT, by_row
from tutti.modeling.kinds.protocol import HeadKind


class AttentionPooling(nn.Module):
    """Structured self-attention (Lin et al. 2017, arXiv 1703.03130) in the static task-attentive form of
    arXiv 1804.08139: token weights are the softmax over tokens of the dot product with one learned query.

    ``(rows, tokens, hidden)`` states and ``(rows, tokens)`` mask to ``(rows, hidden)``; padding gets no weight.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(hidden))

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        scores = (states @ self.query.to(states.dtype)).float()  # of frozen weights in bfloat16
        scores = scores.masked_fill(mask == 0, torch.finfo(torch.float32).min)
        return (states * scores.softmax(dim=1).to(states.dtype).unsqueeze(-1)).sum(dim=1)


class ClsPooling(nn.Module):
    """The state of the first token. Shapes as in AttentionPooling."""

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        return states[:, 0]


class LastPooling(nn.Module):
    """The state of the last token that is not padding, which in a decoder has seen all others. Shapes as in
    AttentionPooling.
    """

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        return states[torch.arange(len(states), device=states.device), last_tokens(mask)]


class MeanPooling(nn.Module):
    """The mean over tokens that are not padding. Shapes as in AttentionPooling."""

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        return _token_mean(states, mask)


class PairPooling(nn.Module):
    """The token means u and v of a pair's two texts, as ``(u, v, |u - v|, u * v)`` (InferSent, Conneau et al. 2017,
    arXiv 1705.02364). Unlike one mean over both texts, this exposes their similarity to the linear layer.

    ``(rows, tokens, hidden)`` states, ``(rows, tokens)`` mask and token types, 1 for the second text, to
    ``(rows, 4 * hidden)`` float32.
    """

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        states = states.float()  # bfloat16 would lose the difference of nearly equal means
        second = mask * second_texts(types)
        return _against_each_other(_token_mean(states, mask - second), _token_mean(states, second))


class BiEncoderPooling(nn.Module):
    """What ``PairPooling`` gives, of texts that the encoder saw apart, as ``texts_apart`` orders them.

    ``(2 * rows, tokens, hidden)`` states and ``(2 * rows, tokens)`` mask to ``(rows, 4 * hidden)`` float32.
    """

    def forward(self, states: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        return _against_each_other(*_token_mean(states.float(), mask).chunk(2))


def _token_mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask.to(states.dtype).unsqueeze(-1)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def _against_each_other(u: Tensor, v: Tensor) -> Tensor:
    return torch.cat([u, v, (u - v).abs(), u * v], dim=1)


def second_texts(types: Tensor | None) -> Tensor:
    """Which tokens belong to a pair's second text, as token types tell.

    Raises:
        ValueError: if there are none.
    """
    if types is None:
        raise ValueError("the poolings pair and bi_encoder take token types, which tell a pair's two texts apart")
    return types == 1


def texts_apart(input_ids: Tensor, mask: Tensor, types: Tensor | None, *, pad: int) -> tuple[Tensor, Tensor]:
    """The two texts of each pair as rows of their own, for an encoder that is to see them apart (a bi-encoder).

    ``(rows, tokens)`` inputs as ``[CLS] a [SEP] b [SEP]`` to the ids and the mask of ``(2 * rows, shorter)``: first
    all ``[CLS] a [SEP]``, then all ``[CLS] b [SEP]``, padded with the token ``pad``: some encoders look at neighbours
    whatever their mask is.
    """
    second = second_texts(types) & (mask > 0)
    first = ~second & (mask > 0)
    second[:, 0] = True  # the token in front stands for the row, and so in front of each text
    parts = torch.cat([first, second])
    order = parts.int().argsort(dim=1, descending=True, stable=True)[:, : int(parts.sum(dim=1).max())]
    apart = parts.gather(1, order)
    return input_ids.repeat(2, 1).gather(1, order).masked_fill(~apart, pad), apart.to(mask.dtype)


def _pooling(name: str, hidden: int, *, pair: bool) -> tuple[nn.Module, int]:
    """A pooling module and the width of its output."""
    match name:
        case "attention":
            return AttentionPooling(hidden), hidden
        case "cls" | "pooler":
            return ClsPooling(), hidden
        case "last":
            return LastPooling(), hidden
        case "pair" if pair:
            return PairPooling(), 4 * hidden
        case "bi_encoder" if pair:
            return BiEncoderPooling(), 4 * hidden
        case "mean" | "pair" | "bi_encoder":
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
        pooling: ``attention``, ``cls``, ``pooler``, ``last``, ``mean``, ``pair`` or ``bi_encoder``; tasks with single
            texts use ``mean`` for the last two.
        layers: number of last encoder layers that are mixed before pooling; 1 uses the last layer only.
        pooling_dropout: dropout probability of token states before pooling.
        dropout: dropout probability before the linear layer.
        dropout_samples: multi-sample dropout (arXiv 1905.09788): in training there is an output for each of this many
            dropout masks.
        ordered: the head of ordered classes: ``softmax``, ``regression`` or ``corn``.
        tags: the head of words or characters with tags: ``softmax`` or ``crf``.
        pairs: what preferences learn: ``logistic`` or ``margin``.
        word_pooling: which tokens of a word are its state: ``first``, ``last`` or ``mean``.
        choices: whether candidates are ``inputs`` of their own, or have ``letters`` in one.
    """

    pooling: str = "attention"
    layers: int = 1
    dropout: float = 0.1
    dropout_samples: int = 1
    ordered: str = "softmax"
    tags: str = "softmax"
    pairs: str = "logistic"
    word_pooling: str = "first"
    choices: str = "inputs"
    pooling_dropout: float = 0.0


class Head(nn.Module):
    """States of the last ``options.layers`` layers, each ``(rows, tokens, hidden)``, and ``(rows, tokens)`` mask and
    token types to ``(rows, width)`` float32: logits, or values of a standardized kind. A head that ``is_bi_encoder``
    takes the states and the mask of ``texts_apart``. A ``pooler``, the encoder's own, pools in place of ``pooling``.

    With ``(rows,)`` int64 ``windows``, the states are those of windows, of which each row has so many, in order: a row
    is the mean of its windows' pooled states (RoBERT, Pappagari et al. 2019, arXiv 1910.10781). Of a kind that scores
    inputs they are those of candidates instead, and the result is ``(rows, outputs)``, see ``ChoiceHead``.
    With ``(rows,)`` int64 ``candidates``, each row has so many letters, and ``ABSENT`` for others.

    While it trains with several ``options.dropout_samples`` it gives ``(samples, rows, width)``, one for each dropout
    mask: the loss is the mean of their losses (multi-sample dropout, Inoue 2019, arXiv 1905.09788).

    A bi-encoder that learns one number adds to the linear layer, which starts at zero, the cosine of the two texts'
    means (Sentence-BERT, Reimers and Gurevych 2019, arXiv 1908.10084): at first a cosine of 0 is the lowest training
    label and one of 1 the highest, so that an encoder pretrained for similarity starts from what it knows.

    Args:
        pair: whether a row has two texts.
        std: standard deviation of the initial weights, drawn from torch's default generator (seed it first).
        kind: of the task. If it is standardized the output is ``value * scale + shift``. These buffers are the standard
            deviation and the mean of the training labels; set them with ``fit_labels``.
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
        kind: HeadKind,
        pair: bool = False,
    ) -> None:
        super().__init__()
        self.kind = kind
        self._most = outputs
        outputs = kind.width(outputs)
        self.mix = LayerMix(options.layers) if options.layers > 1 else None
        self.pooling, width = _pooling(options.pooling, hidden, pair=pair)
        self.pooling_dropout = nn.Dropout(options.pooling_dropout)
        self.dropout = nn.Dropout(options.dropout)
        self.linear = nn.Linear(width, outputs)
        self._samples = options.dropout_samples
        shape = () if outputs == 1 or not kind.standardized else (outputs,)
        self.register_buffer("shift", torch.zeros(shape), persistent=kind.standardized)
        self.register_buffer("scale", torch.ones(shape), persistent=kind.standardized)
        of_similarity = kind.standardized and outputs == 1 and self.is_bi_encoder
        self.similarity = nn.Parameter(torch.tensor([1.0, 0.0])) if of_similarity else None
        nn.init.normal_(self.linear.weight, std=std if self.similarity is None else 0.0)
        nn.init.zeros_(self.linear.bias)
        for query in self.pooling.parameters():
            nn.init.normal_(query, std=std)

    @property
    def is_bi_encoder(self) -> bool:
        """Whether the two texts of a row are encoded apart."""
        return isinstance(self.pooling, BiEncoderPooling)

    @torch.no_grad()
    def fit_labels(self, labels: Tensor, weights: Tensor) -> None:
        """Sets shift and scale of a standardized kind from training labels: labels of any scale train alike.

        Args:
            labels: ``(rows,)``, or ``(rows, outputs)`` with NaN where one is missing.
            weights: ``(rows,)``.
        """
        if not self.kind.standardized:
            return
        shares = weights.double().reshape(-1, *[1] * (labels.ndim - 1)) * ~labels.isnan()
        exact, shares = labels.double().nan_to_num(), shares / shares.sum(dim=0).clamp(min=1e-12)
        mean = (exact * shares).sum(dim=0)
        deviation = ((exact - mean).square() * shares).sum(dim=0).sqrt()
        self.shift.copy_(mean)
        varies = deviation > 1e-12 * mean.abs()
        self.scale.copy_(torch.where(varies, deviation, 1e-6))
        if self.similarity is not None:
            low, high = labels[weights > 0].nan_to_num(float(mean)).aminmax()
            self.similarity.copy_(torch.stack([high - low, low - mean]) / self.scale)

    def forward(
        self,
        states: Sequence[Tensor],
        mask: Tensor,
        types: Tensor | None = None,
        windows: Tensor | None = None,
        candidates: Tensor | None = None,
        *,
        pooler: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        mixed = self.pooling_dropout(states[-1] if self.mix is None else self.mix(states))
        pooled = (self.pooling(mixed, mask, types) if pooler is None else pooler(mixed)).float()
        if windows is not None and not self.kind.of_inputs:
            pooled = torch.segment_reduce(pooled, "mean", lengths=windows, unsafe=True)  # a check would wait for a GPU
        with torch.autocast(pooled.device.type, enabled=False):  # bfloat16 has only 8 bits of precision for outputs
            if self.training and self._samples > 1:
                outputs = torch.stack([self.linear(self.dropout(pooled)) for _ in range(self._samples)])
            else:
                outputs = self.linear(self.dropout(pooled))
            if self.similarity is not None:
                u, v, _, _ = pooled.chunk(4, dim=1)
                slope, intercept = self.similarity
                outputs = outputs + (slope * functional.cosine_similarity(u, v) + intercept).unsqueeze(1)
        if self.kind.of_inputs:
            counts = torch.ones(len(pooled), dtype=torch.int64, device=pooled.device) if windows is None else windows
            return by_row(outputs.squeeze(-1), counts, self._most)
        if candidates is not None:
            letters = torch.arange(self._most, device=pooled.device)
            return outputs.masked_fill(letters >= candidates.unsqueeze(1), ABSENT)
        return outputs * self.scale + self.shift if self.kind.standardized else outputs
