"""A word embedding table of which only the rows of words seen in training data are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tutti.modeling.layers import word_table

_LEAST_UNSEEN = 0.25  # share of the table; with fewer unseen rows, splitting the table does not pay off


class SeenEmbedding(nn.Embedding):
    """An embedding whose parameter holds only the rows of seen ids; a buffer holds the whole table.

    Training data contains only some thousands of a vocabulary's tens of thousands of words. For a small encoder, half
    of the work of the optimizer, of gradient norms and of weight averages goes into the other rows, without effect,
    since they have no gradient. In training mode the module accepts only seen ids, otherwise any id.

    Its state is the single table that it replaces. Like any module's state it is not a copy: the next call of
    ``state_dict`` updates it in place.

    Args:
        whole: the table to replace.
        seen: ``(ids,)`` bool, whether each row is trained.
    """

    whole: Tensor
    seen: Tensor
    places: Tensor

    def __init__(self, whole: nn.Embedding, *, seen: Tensor) -> None:
        table = whole.weight.detach()
        padding = None if whole.padding_idx is None else int(seen[: whole.padding_idx].sum())
        super().__init__(int(seen.sum()), whole.embedding_dim, padding_idx=padding, _weight=table[seen])
        self.register_buffer("whole", table, False)
        self.register_buffer("seen", seen, False)
        self.register_buffer("places", (seen.cumsum(0) - 1).clamp(min=0), False)
        self.train(whole.training)

    def forward(self, input: Tensor) -> Tensor:
        """Ids of any shape, int64, to their vectors."""
        trained = super().forward(self.places[input])
        if self.training:
            return trained
        return torch.where(self.seen[input].unsqueeze(-1), trained, nn.functional.embedding(input, self.whole))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.whole[self.seen] = self.weight.detach()  # avoids a copy: the table may be half of all weights
        destination[f"{prefix}weight"] = self.whole

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        weights = {name: tensor for name, tensor in state_dict.items() if name == f"{prefix}weight"}
        for name, whole in weights.items():
            self.whole.copy_(whole)
            weights[name] = self.whole[self.seen]
        super()._load_from_state_dict(weights, prefix, *args)


def train_seen_words(encoder: PreTrainedModel, seen: Tensor) -> None:
    """Replaces the encoder's word embedding table by a ``SeenEmbedding``, if at least a quarter of its rows is unseen.

    Args:
        seen: ``(vocabulary,)`` bool, whether training rows contain each id; ids beyond its end are unseen.
    """
    table = word_table(encoder)
    if type(table) is not nn.Embedding or table.sparse or table.max_norm is not None:
        return
    if table.num_embeddings < len(seen):
        return
    rows = torch.zeros(table.num_embeddings, dtype=torch.bool)
    rows[: len(seen)] = seen
    if table.padding_idx is not None:
        rows[table.padding_idx] = True
    if rows.sum() > (1 - _LEAST_UNSEEN) * len(rows):
        return
    replacement = SeenEmbedding(table, seen=rows)
    for module in encoder.modules():
        for name, child in list(module.named_children()):
            if child is table:
                setattr(module, name, replacement)
