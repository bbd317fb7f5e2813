"""The different rows of several parts, for pretraining on their texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutti.data.encode import EncodedPart

if TYPE_CHECKING:
    from datasets import Dataset


def distinct_rows(parts: Sequence[EncodedPart]) -> Dataset:
    """The distinct rows of all parts, columns as in ``EncodedPart.encoded``; of equal token sequences the first.

    A row that is several inputs, one for each candidate, gives one of them, as they have the same context; one that is
    read in windows gives all of these.
    """
    from datasets import concatenate_datasets  # slow to import

    rows = concatenate_datasets([part.encoded if part.windows is None else _an_input_each(part) for part in parts])
    first: dict[bytes, int] = {}
    for index, tokens in enumerate(rows.with_format("arrow")[:]["input_ids"]):
        first.setdefault(np.asarray(tokens.values).tobytes(), index)
    return rows.select(first.values())


def _an_input_each(part: EncodedPart) -> Dataset:
    from datasets import Dataset  # slow to import

    assert part.windows is not None
    starts, names = part.flat[1], part.encoded.column_names
    chosen = part.windows.cumsum() - part.windows + np.arange(len(part.windows)) % part.windows
    chosen = chosen if part.units is None else np.arange(len(starts) - 1)
    begins, lengths = starts[chosen], starts[chosen + 1] - starts[chosen]
    places = np.repeat(begins - (lengths.cumsum() - lengths), lengths) + np.arange(lengths.sum())
    ends = pa.array(np.append(0, lengths.cumsum()), pa.int32())
    columns: dict[str, pa.Array] = {}
    for name in ("input_ids", "token_type_ids"):
        if name in names:
            flat = pc.list_flatten(part.encoded.with_format("arrow")[:][name]).to_numpy()
            columns[name] = pa.ListArray.from_arrays(ends, pa.array(flat[places], pa.int32()))
    return Dataset(pa.table({**columns, "length": pa.array(lengths, pa.int32())}))


def tokens_sha256(rows: Dataset) -> str:
    """The SHA-256 of the tokens of all rows, in order."""
    digest = hashlib.sha256()
    for tokens in rows.with_format("arrow")[:]["input_ids"]:
        ids = np.asarray(tokens.values, dtype=np.int32)
        digest.update(len(ids).to_bytes(8, "little") + ids.tobytes())
    return digest.hexdigest()
