"""Rows laid end to end in one sequence: where each lies, and attention that keeps them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    and_masks,
    packed_sequence_mask_function,
    sdpa_mask,
)
from transformers.modeling_utils import AttentionInterface

from tutti.errors import Fault, TrialError
from tutti.modeling.decoders import is_decoder
from tutti.modeling.positions import first_position

VARLEN = "varlen"  # the name of an attention implementation: torch's own flash attention, which needs no package
_BY_LENGTHS = (VARLEN, "flash_attention_2", "flash_attention_3", "flash_attention_4")  # need no mask
_BY_MASK = ("sdpa", "eager", "flex_attention")
_CANNOT = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, ImportError, AssertionError)
_plain_masks: dict[str, Callable[..., Any]] = {}  # transformers' own, by name, since `register`


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the rows of packed sequences lie. Of a batch of sequences of ``tokens`` all shapes are fixed.

    Attributes:
        places: ``(sequences * rows, width)`` int64, the place of each token of a row among the tokens of all sequences;
            of padding some place.
        mask: ``(sequences * rows, width)`` int64, which of them are no padding.
        segments: ``(sequences, tokens)`` int64, the number of each token's row; one more than the last for the tokens
            after it.
        positions: ``(sequences, tokens)`` int64, the position of each token in its row; 0 after the last row.
        bounds: ``(segments + 1,)`` int32, where each row of all sequences begins and the last one ends. What follows
            the last row of a sequence is divided into rows of at most ``width``, some of which are empty.
    """

    places: Tensor
    mask: Tensor
    segments: Tensor
    positions: Tensor
    bounds: Tensor

    @classmethod
    def of(cls, row_mask: Tensor, tokens: int) -> Layout:
        """The layout of ``(sequences, rows, width)`` bool rows, padded on the right, in sequences of ``tokens``."""
        sequences, rows, width = row_mask.shape
        device = row_mask.device
        lengths = row_mask.sum(dim=2)
        ends = lengths.cumsum(dim=1)
        starts = ends - lengths
        every = torch.arange(tokens, device=device).expand(sequences, tokens).contiguous()
        segments = torch.searchsorted(ends, every, right=True)
        positions = (every - starts.gather(1, segments.clamp(max=rows - 1))).masked_fill(segments == rows, 0)
        begins = torch.arange(sequences, device=device).unsqueeze(1) * tokens
        places = (begins + starts).unsqueeze(2) + torch.arange(width, device=device)
        after = ends[:, -1:] + width * torch.arange(1, -(-tokens // width) + 1, device=device)
        bounds = begins + torch.cat([ends, after.clamp(max=tokens)], dim=1)
        return cls(
            places=(places % (sequences * tokens)).flatten(0, 1),
            mask=row_mask.flatten(0, 1).long(),
            segments=segments,
            positions=positions,
            bounds=torch.cat([bounds.new_zeros(1), bounds.flatten()]).int(),
        )

    def rows_of(self, values: Tensor) -> Tensor:
        """``(sequences, tokens, ...)`` values of tokens to ``(sequences * rows, width, ...)``, those of each row."""
        flat = values.flatten(0, 1)
        return flat.index_select(0, self.places.flatten()).unflatten(0, self.places.shape)

    def inputs(self, encoder: PreTrainedModel, *, first_position: int) -> dict[str, Any]:
        """What makes an encoder that ``keeps_rows_apart`` do so, by the names of its arguments.

        Args:
            first_position: the number of a row's first token.
        """
        options: dict[str, Any] = {"attention_mask": self.segments.unsqueeze(1)}
        if encoder.config._attn_implementation in _BY_LENGTHS:
            width = self.mask.shape[1]
            options |= {"cu_seq_lens_q": self.bounds, "cu_seq_lens_k": self.bounds}
            options |= {"max_length_q": width, "max_length_k": width}
        return {**options, "position_ids": self.positions + first_position}


def register() -> None:
    """Teaches transformers' attention masks ``(sequences, 1, tokens)`` int64 numbers of rows, besides masks of padding,
    and the attention ``varlen``. What masks of other shapes mean stays as it is.
    """
    if _plain_masks:
        return
    masks = AttentionMaskInterface._global_mapping
    for name in (*_BY_MASK, *_BY_LENGTHS):
        _plain_masks[name] = masks.get(name, sdpa_mask)
        AttentionMaskInterface.register(name, partial(_mask, name))
    AttentionInterface.register(VARLEN, varlen_attention)


def _mask(name: str, *, attention_mask: Tensor | None = None, **options: Any) -> Any:
    if attention_mask is None or attention_mask.ndim != 3:
        return _plain_masks[name](attention_mask=attention_mask, **options)
    if name in _BY_LENGTHS:
        return None
    rows = packed_sequence_mask_function(attention_mask[:, 0])
    of_rows = and_masks(options.pop("mask_function"), rows)
    whole = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return _plain_masks[name](mask_function=of_rows, attention_mask=None, **{**options, **whole})


def varlen_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: flash attention of rows whose bounds are ``cu_seq_lens_q``, on a GPU in 16
    bits; without them scaled_dot_product_attention.

    Raises:
        ValueError: if the model asks for more than the kernel computes.
    """
    if cu_seq_lens_q is None or max_length_q is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, is_causal, **options)
    if options.get("softcap") is not None or options.get("s_aux") is not None:
        raise ValueError("flash attention of packed rows has neither a soft cap nor sinks")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    before = -1 if sliding_window is None else sliding_window - 1
    sequences, _, tokens, _ = query.shape
    query, key, value = (each.transpose(1, 2).flatten(0, 1) for each in (query, key, value))
    # torch's varlen_attn calls the same kernel, but without dropout.
    outputs = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        cu_seq_lens_q,
        cu_seq_lens_q,
        max_length_q,
        max_length_q,
        dropout,
        causal and sliding_window is None,
        False,
        scale=scaling,
        window_size_left=before,
        window_size_right=0 if causal else before,
    )[0]
    return outputs.unflatten(0, (sequences, tokens)), None


def pack_rows(encoder: PreTrainedModel, *, asked: bool, exact: bool) -> None:
    """Sets an encoder's attention to the fastest that keeps packed rows apart. It is tried where the encoder is, in the
    precision of the block: in training too, where it takes the place of the encoder's own.

    Args:
        asked: whether the user has chosen the attention that the encoder has.
        exact: whether a state is the same to float32's precision whatever else is computed.

    Raises:
        TrialError: if none does.
    """
    register()
    config, own = encoder.config, encoder.config._attn_implementation
    faster = [VARLEN, "flex_attention"] if encoder.device.type == "cuda" and own == "sdpa" and not asked else []
    for name in (*faster, own):
        config._attn_implementation = name
        with torch.random.fork_rng(devices=[encoder.device] if encoder.device.type == "cuda" else []):
            if keeps_rows_apart(encoder, exact=exact) and (name == own or _trains(encoder)):
                return
    config._attn_implementation = own
    rule = "be padded for a backbone whose attention cannot keep packed rows apart"
    got = f"packed with a model of type {config.model_type!r} and the attention {own}"
    raise TrialError(Fault("the training key batching", rule, got, "leave it out, or name another backbone"))


def keeps_rows_apart(encoder: PreTrainedModel, *, exact: bool = True) -> bool:
    """Whether an encoder gives the tokens of packed rows what it gives them alone, and nothing of other rows.

    Args:
        exact: whether a state is the same to float32's precision whatever else is computed.
    """
    leak, error = (1e-5, 1e-5) if exact else (1e-2, 5e-2)  # shares of the highest state
    try:
        own, ids, layout = _example(encoder)
        with _mode(encoder, training=False), torch.no_grad():
            states = _packed_states(encoder, ids, layout)
            alone = encoder(input_ids=own[None], attention_mask=torch.ones_like(own)[None], **_uncached(encoder))
    except _CANNOT:
        return False
    expected = alone.last_hidden_state[0].float()
    if states.shape != (*ids.shape, expected.shape[-1]):
        return False
    rows = layout.rows_of(states).float().unflatten(0, (4, 2))
    first, second = rows[:2, 0], rows[2:, 1]
    scale = expected.abs().max()
    leaks = max((each[0] - each[1]).abs().max() for each in (first, second))
    errors = max((each[0] - expected).abs().max() for each in (first, second))
    return bool(leaks <= leak * scale) and bool(errors <= error * scale)


def _trains(encoder: PreTrainedModel) -> bool:
    """Whether a step of training has finite gradients, with dropout."""
    weights = [weight for weight in encoder.parameters() if weight.requires_grad]
    if not weights:
        return True
    _, ids, layout = _example(encoder)
    try:
        with _mode(encoder, training=True), torch.enable_grad():
            loss = _packed_states(encoder, ids, layout).float().square().mean()
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    except _CANNOT:
        return False
    return all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)


def _example(encoder: PreTrainedModel) -> tuple[Tensor, Tensor, Layout]:
    """A row, and four packed sequences of it and another row: first and last, with either of two others."""
    generator = torch.Generator().manual_seed(0)
    table = len(encoder.get_input_embeddings().weight)
    own, one, other = torch.randint(table // 2, table, (3, 7), generator=generator).to(encoder.device)
    sequences = [(own, one, other[:3]), (own, other, one[:3]), (one, own, other[:3]), (other, own, one[:3])]
    ids = torch.stack([torch.cat(each) for each in sequences])
    row_mask = torch.ones(4, 2, 7, dtype=torch.bool, device=ids.device)
    return own, ids, Layout.of(row_mask, ids.shape[1])


def _packed_states(encoder: PreTrainedModel, ids: Tensor, layout: Layout) -> Tensor:
    inputs = layout.inputs(encoder, first_position=first_position(encoder))
    states: Tensor = encoder(input_ids=ids, **inputs, **_uncached(encoder)).last_hidden_state
    return states


@contextmanager
def _mode(encoder: PreTrainedModel, *, training: bool) -> Iterator[None]:
    before = encoder.training
    encoder.train(training)
    try:
        yield
    finally:
        encoder.train(before)


def _uncached(encoder: PreTrainedModel) -> dict[str, Any]:
    return {"use_cache": False} if is_decoder(encoder.config) else {}
