"""Masked language modelling (BERT, arXiv 1810.04805): masked tokens are guessed from all others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tutti.config.pretraining import PretrainingSettings
from tutti.modeling.layers import token_types
from tutti.training.pretraining.batches import ALL, Share, TokenBatch
from tutti.training.pretraining.language_model import SelectedLogits, check_has_token, load_language_model
from tutti.training.pretraining.masks import choose_tokens
from tutti.training.pretraining.objective import Inputs, Outcome, model_inputs, special_tokens

MASK_SHARE = 0.15
MASKED, RANDOM = 0.8, 0.1  # of the tokens to be guessed, those replaced by the mask, and by random tokens


class Guessing:
    """Of tokens that are guessed: what a batch gives, from ``selected``, ``labels``, ``count`` and ``total``."""

    module: Any
    _logits: SelectedLogits

    def outcome(self, inputs: Inputs) -> Outcome:
        selected, labels, count, total = (inputs.pop(name) for name in ("selected", "labels", "count", "total"))
        return token_outcome(self._logits(inputs, selected), labels, count, total)

    def loss(self, means: Mapping[str, float]) -> float:
        return means["loss"]

    def save(self, folder: Path, tokenizer: Any) -> None:
        self.module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


class Masked(Guessing):
    """Masks are drawn anew for each step. Logits are computed of tokens to be guessed alone.

    Raises:
        BackboneError: if the backbone does not load or has no such form, or its tokenizer no mask token.
    """

    def __init__(self, backbone: str, *, tokenizer: Any, settings: PretrainingSettings) -> None:
        check_has_token(tokenizer, "masked")
        model = load_language_model(backbone, "masked")
        self.module, self.model_type = model, model.config.model_type
        self._logits = SelectedLogits(model)
        self._types = bool(token_types(model))
        self._mask, self._vocabulary = tokenizer.mask_token_id, len(tokenizer)
        self._special = special_tokens(tokenizer)
        self._share = settings.mask_share or MASK_SHARE
        self._masks, self._all_masks = settings.masks, settings.all_masks

    def draw(self, batch: TokenBatch, share: Share = ALL) -> Inputs:
        maskable = batch.is_token & ~torch.isin(batch.ids, self._special)
        chosen = choose_tokens(batch, maskable, share=self._share, masks=self._masks)
        ids = batch.ids.masked_fill(chosen, self._mask)
        if not self._all_masks:
            drawn = torch.rand(ids.shape)
            random = torch.randint(self._vocabulary, ids.shape)
            ids = torch.where(chosen & (drawn >= MASKED), random, ids)
            ids = torch.where(chosen & (drawn >= MASKED + RANDOM), batch.ids, ids)
        total = chosen.sum()
        batch, chosen, ids = share.batch(batch, chosen, ids)
        selected = select_tokens(chosen)
        places = {"selected": selected, "labels": batch.ids.flatten()[selected], "count": chosen.sum(), "total": total}
        return model_inputs(batch, types=self._types) | {"input_ids": ids} | places


MULTIPLE = 64  # the number of tokens with logits is rounded up to a multiple of this


def select_tokens(chosen: Tensor) -> Tensor:
    """``(tokens,)`` int64 indices into a flat batch: of the chosen tokens first, then of others, up to a multiple of
    ``MULTIPLE``, as far as there are any.

    The number of chosen tokens differs from batch to batch, and a CPU would compile the head's matrix products for
    each new number, which takes a quarter of a small encoder's step.
    """
    flat = chosen.flatten()
    indices = flat.nonzero().squeeze(1)
    return torch.cat([indices, (~flat).nonzero().squeeze(1)[: -len(indices) % MULTIPLE]])


def token_outcome(logits: Tensor, labels: Tensor, count: Tensor, total: Tensor, *, prefix: str = "") -> Outcome:
    """Cross-entropy, divided by ``total``, and accuracy of the first ``count`` tokens.

    A token is right if no other has more: its logit is compared with the greatest, since a CPU takes twenty times as
    long to find the place of the greatest of bfloat16 numbers.

    Args:
        logits: ``(tokens, vocabulary)``.
        labels: ``(tokens,)`` int64.
    """
    counts = torch.arange(len(labels), device=labels.device) < count
    logits = logits.float()
    losses = nn.functional.cross_entropy(logits, labels, reduction="none")
    loss = torch.where(counts, losses, 0.0).sum()
    of_labels = logits.detach().gather(1, labels[:, None]).squeeze(1)
    right = (counts & (of_labels == logits.detach().amax(-1))).sum()
    sums = {f"{prefix}loss": (loss.detach(), count), f"{prefix}accuracy": (right, count)}
    return Outcome(loss / total.clamp(min=1), sums)
