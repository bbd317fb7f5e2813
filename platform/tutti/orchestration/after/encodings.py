"""How rows are tokenized for the checkpoints that predict them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.records import TextLimit

if TYPE_CHECKING:
    import pyarrow as pa
    from pandas import DataFrame

    from tutti.tasks.task import Task


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to predict with.

    Attributes:
        folder: visible to every node.
        limit: of the tokens of a row in training.
        settings: of generation, in place of those of the checkpoint's own task; empty for these.
    """

    folder: Path
    limit: TextLimit
    settings: Mapping[str, Any] = field(default_factory=dict)


class Encodings:
    """How rows are tokenized for checkpoints: those with equal tokenizers and equal limits share one encoding.

    Attributes:
        keys: the key of each checkpoint's encoding.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint], task: Task) -> None:
        from tutti.data.encode import load_tokenizer
        from tutti.data.encoding_key import encoding_key
        from tutti.data.prompts import prompt_key

        self._task = task
        self.keys: list[str] = []
        self._tokenizers: dict[str, tuple[Any, TextLimit]] = {}
        for checkpoint in checkpoints:
            tokenizer, limit = load_tokenizer(str(checkpoint.folder)), task.limit(checkpoint.limit)
            key = encoding_key(tokenizer, limit)
            if task.generation is not None:
                key += prompt_key(tokenizer, limit, chat=task.generation.chat)
            self.keys.append(key)
            self._tokenizers.setdefault(self.keys[-1], (tokenizer, limit))

    def of(self, checkpoint: int) -> tuple[str, int]:
        """The key of a checkpoint's encoding, and the id of its padding token."""
        key = self.keys[checkpoint]
        return key, self._tokenizers[key][0].pad_token_id

    def encoded(self, rows: DataFrame) -> Iterator[tuple[str, tuple[pa.Table, pa.Table | None]]]:
        """The key of each encoding, and the rows in it, with those of pairs in the other order where it swaps them."""
        import pyarrow as pa

        from tutti.data.clean import text_columns
        from tutti.data.encode import encode_rows, swapped
        from tutti.data.prompts import SCHEMA, encoded_prompts

        texts = pa.table({name: pa.array(rows[name], pa.string()) for name in text_columns(rows)})
        for key, (tokenizer, limit) in self._tokenizers.items():
            if self._task.generation is not None:
                chat, size = self._task.generation.chat, max(len(rows), 1)
                prompts = encoded_prompts(texts, tokenizer, limit, chat=chat, rows=size)
                yield key, (pa.Table.from_batches(prompts, SCHEMA), None)
                continue
            orders = (texts, swapped(texts)) if self._task.swaps(limit) else (texts,)
            first, *other = (encode_rows(each, tokenizer=tokenizer, limit=limit) for each in orders)
            yield key, (first, other[0] if other else None)
