"""A table of word embeddings of which only the rows of seen words are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

_LEAST_UNSEEN = 0.25  # of the table; below that two smaller tables gain nothing on one


class SeenEmbedding(nn.Embedding):
    """A table whose parameter has the rows of seen ids alone; all others are in a buffer, which no step changes.

    Training rows hold some thousands of a vocabulary's tens of thousands of words. What an optimizer, the norm of a
    gradient or an average of weights do to the rows of all others is half of what they do to a small encoder, and
    comes to nothing: without a gradient they stay. In training it takes seen ids alone, otherwise any.

    Its state is the one table that it stands for. As with any module's state, this is no copy: it changes with the
    next one that is asked for.

    Args:
        whole: the table.
        seen: ``(ids,)`` bool, for each row whether it is trained.
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
        self.whole[self.seen] = self.weight.detach()  # no copy of the table: it may be half of all weights
        destination[f"{prefix}weight"] = self.whole

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        own = {name: tensor for name, tensor in state_dict.items() if name == f"{prefix}weight"}
        for name, whole in own.items():
            self.whole.copy_(whole)
            own[name] = self.whole[self.seen]
        super()._load_from_state_dict(own, prefix, *args)


def train_seen_words(encoder: PreTrainedModel, seen: Tensor) -> None:
    """Puts a ``SeenEmbedding`` in the place of the encoder's table of words, where it has one and a good part of its
    rows is not seen.

    Args:
        seen: ``(vocabulary,)`` bool, whether training rows hold an id; what lies beyond it they do not hold.
    """
    try:
        table = encoder.get_input_embeddings()
    except NotImplementedError:  # of characters, which are hashed
        return
    plain = type(table) is nn.Embedding and not table.sparse and table.max_norm is None
    if not plain or table.num_embeddings < len(seen):
        return
    rows = torch.zeros(table.num_embeddings, dtype=torch.bool)
    rows[: len(seen)] = seen
    if table.padding_idx is not None:
        rows[table.padding_idx] = True
    if rows.sum() > (1 - _LEAST_UNSEEN) * len(rows):
        return
    made = SeenEmbedding(table, seen=rows)
    for module in encoder.modules():
        for name, child in list(module.named_children()):
            if child is table:
                setattr(module, name, made)
