"""Batches of a corpus's rows, read from memory-mapped Arrow, in an order that depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from tutti.data.batches import BatchPlan, BatchRows, TaskBatchSampler


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Rows padded to the longest one.

    Attributes:
        ids: ``(rows, tokens)`` int64.
        is_token: ``(rows, tokens)`` bool: not padding.
        types: ``(rows, tokens)`` int64 token types; None for a corpus without them.
        starts: ``(rows, tokens)`` bool: whether a word begins at this token; None if the corpus does not tell.
    """

    ids: Tensor
    is_token: Tensor
    types: Tensor | None = None
    starts: Tensor | None = None


@dataclass(frozen=True)
class Share:
    """One rank's rows of a batch that all ranks share: every ``world``-th row. By default all rows."""

    rank: int = 0
    world: int = 1

    def rows(self, array: Any) -> Any:
        """These rows of a tensor or array whose first dimension is the batch's rows."""
        return array if self.world == 1 else array[self.rank :: self.world]

    def batch(self, whole: TokenBatch, *others: Tensor) -> tuple[Any, ...]:
        """These rows of a batch, and of further ``(rows, tokens)`` tensors of it, padded to the longest of them."""
        if self.world == 1:
            return whole, *others
        width = int(self.rows(whole.is_token).sum(1).max())
        own: list[Any] = [
            None if each is None else self.rows(each)[:, :width].contiguous()
            for each in (whole.ids, whole.is_token, whole.types, whole.starts, *others)
        ]
        return TokenBatch(*own[:4]), *own[4:]


ALL = Share()


def read_batch(rows: Any, indices: Sequence[int] | np.ndarray, *, pad: int) -> TokenBatch:
    """The rows of a dataset at these indices; shorter ones are padded with the token ``pad``."""
    table: pa.Table = rows.with_format("arrow")[np.asarray(indices).tolist()]
    lengths = table["length"].to_numpy()
    is_token = np.arange(lengths.max()) < lengths[:, None]

    def padded(name: str, filling: int, dtype: Any) -> Tensor:
        array = np.full(is_token.shape, filling, dtype=dtype)
        array[is_token] = np.concatenate(
            [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in table[name].chunks]
        )
        return torch.from_numpy(array)

    return TokenBatch(
        ids=padded("input_ids", pad, np.int64),
        is_token=torch.from_numpy(is_token),
        types=padded("token_type_ids", 0, np.int64) if "token_type_ids" in table.column_names else None,
        starts=padded("starts", 0, np.bool_) if "starts" in table.column_names else None,
    )


class Order:
    """The batches of each epoch: rows of similar length, in random order.

    With batches in order of length, gradients of neighbors are alike, and a small new encoder stays on the plateau
    where it guesses the most frequent tokens.
    """

    def __init__(self, rows: Any, *, batch_size: int, seed: int) -> None:
        self._sampler = TaskBatchSampler(
            {"texts": BatchRows(lengths := row_lengths(rows), weights=np.ones(len(lengths), dtype=np.float32))},
            plan=BatchPlan(per_device_batch=batch_size),
            seed=seed,
            stage=0,
            rank=0,
            world=1,
        )

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return len(self._sampler)

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """The rows' indices, by batch."""
        self._sampler.set_epoch(epoch)
        return [batch.rows for batch in self._sampler]


def row_lengths(rows: Any) -> np.ndarray:
    """``(rows,)`` the number of tokens of each row."""
    lengths: np.ndarray = rows.select_columns("length").with_format("arrow")[:]["length"].to_numpy()
    return lengths
