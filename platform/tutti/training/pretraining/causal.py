"""Causal language modelling, of decoders: each token is predicted from those before it."""

from __future__ import annotations

from typing import Any

import torch

from tutti.training.pretraining.batches import ALL, Share, TokenBatch
from tutti.training.pretraining.language_model import SelectedLogits, check_has_token, load_language_model
from tutti.training.pretraining.masked import Guessing, select_tokens
from tutti.training.pretraining.objective import Inputs, model_inputs


class Causal(Guessing):
    """Rows that end before the longest one without an end of text get one.

    Args:
        longest: of all rows, in tokens. Rows of this length may have been cut, so a decoder learns no end of them.

    Raises:
        BackboneError: if the backbone does not load or is no decoder, or its tokenizer has no end of text.
    """

    def __init__(self, backbone: str, *, tokenizer: Any, longest: int) -> None:
        check_has_token(tokenizer, "causal")
        model = load_language_model(backbone, "causal")
        self.module, self.model_type = model, model.config.model_type
        self._logits = SelectedLogits(model)
        self._end, self._pad, self._longest = tokenizer.eos_token_id, tokenizer.pad_token_id, longest

    def draw(self, batch: TokenBatch, share: Share = ALL) -> Inputs:
        batch = self._ended(batch)
        total = batch.is_token[:, 1:].sum()
        (batch,) = share.batch(batch)
        chosen = torch.zeros_like(batch.is_token)
        chosen[:, :-1] = batch.is_token[:, 1:]  # each token that has one after it
        selected = select_tokens(chosen)
        labels = batch.ids.flatten().roll(-1)[selected]
        drawn = {"selected": selected, "labels": labels, "count": chosen.sum(), "total": total}
        return model_inputs(batch, types=False) | drawn

    def _ended(self, batch: TokenBatch) -> TokenBatch:
        lengths = batch.is_token.sum(1)
        last = batch.ids.gather(1, (lengths - 1)[:, None]).squeeze(1)
        rows = ((lengths < self._longest) & (last != self._end)).nonzero().squeeze(1)
        if not len(rows):
            return batch
        ids = torch.cat([batch.ids, batch.ids.new_full((len(batch.ids), 1), self._pad)], dim=1)
        is_token = torch.cat([batch.is_token, batch.is_token.new_zeros(len(batch.ids), 1)], dim=1)
        ids[rows, lengths[rows]], is_token[rows, lengths[rows]] = self._end, True
        width = int(is_token.sum(1).max())
        return TokenBatch(ids[:, :width], is_token[:, :width])
