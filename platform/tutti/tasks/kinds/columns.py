"""Labels as columns of an Arrow table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def label_array(column: pa.ChunkedArray) -> np.ndarray:
    """``(rows,)`` int64 or float32 of a column of labels, or ``(rows, k)`` float32 of one of lists."""
    if pa.types.is_integer(column.type):
        return column.to_numpy().astype(np.int64)
    if not pa.types.is_list(column.type):
        return column.to_numpy()
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1)


def label_column(labels: np.ndarray) -> pa.Array:
    """The inverse of ``label_array``."""
    if labels.ndim == 1:
        return pa.array(labels)
    return pa.array(list(labels.astype(np.float32)), pa.list_(pa.float32()))
