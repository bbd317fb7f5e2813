"""The different rows of several parts, for pretraining on their texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tutti.data.encode import EncodedPart

if TYPE_CHECKING:
    from datasets import Dataset


def distinct_rows(parts: Sequence[EncodedPart]) -> Dataset:
    """The distinct rows of all parts, columns as in ``EncodedPart.encoded``; of equal token sequences the first."""
    from datasets import concatenate_datasets  # slow to import

    rows = concatenate_datasets([part.encoded for part in parts])
    first: dict[bytes, int] = {}
    for index, tokens in enumerate(rows.with_format("arrow")[:]["input_ids"]):
        first.setdefault(np.asarray(tokens.values).tobytes(), index)
    return rows.select(first.values())


def tokens_sha256(rows: Dataset) -> str:
    """The SHA-256 of the tokens of all rows, in order."""
    digest = hashlib.sha256()
    for tokens in rows.with_format("arrow")[:]["input_ids"]:
        ids = np.asarray(tokens.values, dtype=np.int32)
        digest.update(len(ids).to_bytes(8, "little") + ids.tobytes())
    return digest.hexdigest()
