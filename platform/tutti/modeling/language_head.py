"""The language-model head of a decoder: it scores texts that follow prompts, and writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import cached_file

from tutti.errors import BackboneError, Fault
from tutti.modeling.kinds.text import TextHead

_HEAD, _BIAS = "lm_head.weight", "lm_head.bias"
_FILES = ("model.safetensors.index.json", "model.safetensors")


class LanguageHead(nn.Module):
    """States of a decoder to ``(rows, 3)`` float32, see ``tutti.modeling.kinds.text.WIDTH``.

    Logits are made for the target's tokens alone, which saves most of the memory and time that they take.

    Args:
        weight: ``(vocabulary, hidden)``; None where the decoder's embeddings serve.
        trained: whether the weight is trained and saved; otherwise it is the backbone's, as under an adapter.
    """

    is_bi_encoder = False
    scale: Tensor
    weight: Tensor | None

    def __init__(self, config: Any, weight: Tensor | None, *, trained: bool) -> None:
        super().__init__()
        self.kind = TextHead()
        self.register_buffer("scale", torch.ones(()), persistent=False)
        if trained and weight is not None:
            self.weight = nn.Parameter(weight.float())
        else:
            self.register_buffer("weight", weight, persistent=False)
        self._cap = getattr(config, "final_logit_softcapping", None)
        self._factor = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)

    def fit_labels(self, labels: Tensor, weights: Tensor) -> None:
        """Does nothing: tokens have no scale."""

    def logits(self, states: Tensor, table: Tensor) -> Tensor:
        """``(tokens, hidden)`` states to ``(tokens, vocabulary)`` float32.

        Args:
            table: the decoder's embeddings, ``(vocabulary, hidden)``.
        """
        weight = table if self.weight is None else self.weight
        logits = functional.linear(states.to(weight.dtype), weight).float() * self._factor
        return logits if not self._cap else torch.tanh(logits / self._cap) * self._cap

    def choice_logits(self, states: Tensor, places: Tensor, choices: Tensor, table: Tensor) -> Tensor:
        """``(rows, choices)`` float32 logits of some tokens at ``places``; the others are as of ``forward``."""
        rows = torch.arange(len(places), device=places.device)
        return self.logits(states[rows, places - 1], table)[:, choices]

    def forward(self, states: Tensor, mask: Tensor, input_ids: Tensor, places: Tensor, table: Tensor) -> Tensor:
        """Args:
        states: ``(rows, tokens, hidden)``.
        mask: ``(rows, tokens)``, with padding on the right.
        places: ``(rows,)`` int64, the place of the first token of each target, above 0.
        table: as of ``logits``.
        """
        columns = torch.arange(1, input_ids.shape[1], device=input_ids.device)
        wanted = (columns >= places[:, None]) & (mask[:, 1:] != 0)
        rows = wanted.nonzero()[:, 0]
        logits, labels = self.logits(states[:, :-1][wanted], table), input_ids[:, 1:][wanted]
        total = logits.logsumexp(dim=1)
        likely = total - logits.gather(1, labels[:, None])[:, 0]
        per_token = torch.stack([likely, torch.ones_like(likely), total - logits.mean(dim=1)], dim=1)
        return per_token.new_zeros(len(input_ids), 3).index_add(0, rows, per_token)


def language_head(encoder: PreTrainedModel, *, trained: bool, backbone: str | None) -> LanguageHead:
    """The head of a decoder.

    Args:
        trained: as of ``LanguageHead``.
        backbone: where its weights are; None for those of a checkpoint, which are loaded later.

    Raises:
        BackboneError: if the backbone's files have none, or one with a bias, as a few older decoders have.
    """
    config = encoder.config
    if getattr(config, "tie_word_embeddings", True):
        return LanguageHead(config, None, trained=trained)
    dtype = next(weight.dtype for weight in encoder.parameters() if weight.is_floating_point())
    if backbone is None:
        return LanguageHead(config, torch.empty(config.vocab_size, config.hidden_size), trained=trained)
    weight = head_rows(backbone, slice(None), bias=False)
    if weight is None:
        rule, remedy = "hold a language-model head", "name a decoder that was saved with its head"
        raise BackboneError(Fault(f"the backbone {backbone!r}", rule, f"weights without {_HEAD}", remedy))
    return LanguageHead(config, weight.to(dtype), trained=trained)


def head_rows(backbone: str, rows: slice, *, bias: bool = True) -> Tensor | None:
    """``(rows, hidden)`` rows of the language-model head in a backbone's files, which is not loaded whole; None if it
    has none of its own.

    Args:
        bias: whether a head with a bias will do.

    Raises:
        BackboneError: if it has one and that will not do.
    """
    if (file := _file_of_head(backbone)) is None:
        return None
    with safe_open(file, framework="pt") as weights:
        names = set(weights.keys())
        if _HEAD in names and _BIAS in names and not bias:
            rule, remedy = "have a language-model head without a bias", "name another decoder"
            raise BackboneError(Fault(f"the backbone {backbone!r}", rule, _BIAS, remedy))
        return weights.get_slice(_HEAD)[rows] if _HEAD in names else None


def _file_of_head(backbone: str) -> str | None:
    """The file of safetensors that has the language-model head, or may have it; None if there is none."""
    for name in _FILES:
        path = cached_file(backbone, name, _raise_exceptions_for_missing_entries=False)
        if path is not None and name.endswith(".json"):
            name = json.loads(Path(path).read_text(encoding="utf-8"))["weight_map"].get(_HEAD)
            return None if name is None else cached_file(backbone, name)
        if path is not None:
            return str(path)
    return None


def causal_model(encoder: PreTrainedModel, head: LanguageHead) -> PreTrainedModel:
    """The decoder with its head as a causal model of transformers, which shares their weights, to write texts."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(encoder.config, dtype=torch.float32)
    setattr(model, model.base_model_prefix, encoder)
    output = nn.Linear(1, 1, bias=False, device="meta")
    output.weight = (
        encoder.get_input_embeddings().weight
        if head.weight is None
        else nn.Parameter(head.weight.detach(), requires_grad=False)
    )
    model.set_output_embeddings(output)
    return model.eval()
