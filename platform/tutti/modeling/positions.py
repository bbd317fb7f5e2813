"""How an encoder numbers the places of tokens in a row, and how many it can."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

_TABLES = {"position_embeddings", "char_position_embeddings", "position_embedding", "embed_positions", "wpe"}


def positions(encoder: PreTrainedModel) -> int | None:
    """The longest input, in tokens, that the encoder's position table allows; None if it has no such table."""
    tables = _tables(encoder)
    if not tables:  # relative or rotary positions allow any length
        return None
    rows = min(len(table.weight) - _first(table) for table in tables)
    return min(rows, getattr(encoder.config, "max_position_embeddings", rows))


def first_position(encoder: PreTrainedModel) -> int:
    """The number of a row's first token."""
    return max(map(_first, _tables(encoder)), default=0)


def _tables(encoder: PreTrainedModel) -> list[Any]:
    return [
        module
        for name, module in encoder.named_modules()
        if name.rpartition(".")[2] in _TABLES and hasattr(module, "padding_idx")  # I-BERT's is no nn.Embedding
    ]


def _first(table: Any) -> int:
    """RoBERTa and similar models number positions from padding_idx + 1."""
    return 0 if table.padding_idx is None else int(table.padding_idx) + 1
