"""What takes PyTorch long on a CPU while it trains, done another way: dropout's masks, and attention in bfloat16."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.library import Library
from transformers import PretrainedConfig, PreTrainedModel

_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout")  # what configs call that of attention
_FEW = 2**-8  # a probability nearer to 0 or 1 is drawn from more than 16 bits
_MOST_THREADS = 4  # beyond them PyTorch's own draw, which is parallel, gains on one that is not
_overridden: list[Library] = []


@contextmanager
def quick_masks() -> Iterator[None]:
    """While the block runs, dropout on the CPU draws its masks from 16 random bits for an entry.

    On one thread that is four times as fast, and a step of a small encoder takes up to a tenth less. A mask's
    probability is right to 2**-17. It comes from the same generator as PyTorch's own, but is another one. With many
    threads PyTorch's own stays. For one thread of a process at a time.
    """
    if _overridden or torch.get_num_threads() > _MOST_THREADS:  # by a block around this one
        yield
        return
    _overridden.append(Library("aten", "IMPL"))
    try:
        with warnings.catch_warnings(action="ignore"):  # it tells of what is overridden, which is meant
            _overridden[0].impl("bernoulli_.float", _bernoulli, "CPU")
        yield
    finally:
        _overridden.clear()  # PyTorch's own is back as soon as nobody holds the library


def _bernoulli(self: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    if not _FEW <= p <= 1 - _FEW:
        even = torch.rand(self.shape, generator=generator, dtype=torch.float32, device="cpu")
        return torch.lt(even, p, out=self)
    words = torch.empty(-(-self.numel() // 4), dtype=torch.int64, device="cpu")
    words.random_(-(2**63), None, generator=generator)
    drawn = words.view(torch.int16)[: self.numel()].view(self.shape)
    return torch.lt(drawn, round(p * 2**16) - 2**15, out=self)


def slow_attention(model: nn.Module) -> list[PretrainedConfig]:
    """The configs of those encoders in a model whose attention trains faster step by step, "eager", than as "sdpa".

    With dropout PyTorch's scaled_dot_product_attention has no kernel of its own on a CPU: it does the same steps, and
    its matrix products in float32 where it is given bfloat16. Without, as when it predicts, it has one, fast and small.
    """
    return [
        encoder.config
        for encoder in model.modules()
        if isinstance(encoder, PreTrainedModel)
        and encoder._can_set_attn_implementation()
        and encoder.config._attn_implementation == "sdpa"
        and any(getattr(encoder.config, name, 0) for name in _DROPOUT)
    ]


@contextmanager
def step_by_step(configs: Sequence[PretrainedConfig]) -> Iterator[None]:
    """Attention is "eager" while the block runs, and "sdpa" again after it."""
    try:
        for config in configs:
            config._attn_implementation = "eager"
        yield
    finally:
        for config in configs:
            config._attn_implementation = "sdpa"
