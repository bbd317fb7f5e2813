"""Labels as columns of an Arrow table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pandas import DataFrame, Series

from tutti.tasks.kinds.entities import ABSENT


def label_array(column: pa.ChunkedArray) -> np.ndarray:
    """``(rows,)`` int64, float32 or str objects of a column of labels, or ``(rows, k)`` float32 of one of lists.

    Lists of whole numbers, which are tags, may differ in length: ``(rows, units)`` int32, the rest ``ABSENT``.
    """
    if pa.types.is_integer(column.type):
        return column.to_numpy().astype(np.int64)
    if not pa.types.is_list(column.type):
        return column.to_numpy()
    if pa.types.is_integer(column.type.value_type):
        return padded(column, ABSENT)
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1)


def label_column(labels: np.ndarray) -> pa.Array:
    """The inverse of ``label_array``."""
    if labels.ndim == 1:
        return pa.array(labels)
    if labels.dtype.kind == "i":
        return pa.array([row[row != ABSENT] for row in labels], pa.list_(pa.int32()))
    return pa.array(list(labels.astype(np.float32)), pa.list_(pa.float32()))


def padded(column: pa.ChunkedArray, filler: float, width: int = 1) -> np.ndarray:
    """``(rows, longest list)``, or a multiple of ``width`` values that belong together: ``(rows, longest, width)``."""
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    lengths = np.concatenate([each.value_lengths().to_numpy(zero_copy_only=False) for each in column.chunks] or [[]])
    lengths = lengths.astype(np.int64) // width
    places = np.arange(max(lengths.max(initial=0), 1)) < lengths[:, None]
    rows = np.full((*places.shape, width), filler, dtype=values.dtype)
    rows[places] = values.reshape(-1, width)
    return rows if width > 1 else rows[..., 0]


def in_frame(rows: DataFrame, labels: np.ndarray) -> DataFrame:
    """The rows with these labels in the column ``label``: a number or text for each row, or an array."""
    column = Series(list(labels), rows.index, dtype=object) if labels.ndim > 1 or labels.dtype == object else labels
    return rows.assign(label=column)


def of_frame(rows: DataFrame) -> np.ndarray:
    """The labels that ``in_frame`` put there, in the shape of their kind."""
    column = rows["label"]
    has_arrays = column.dtype == object and len(column) and not isinstance(column.iloc[0], str)
    return np.stack(column.tolist()) if has_arrays else column.to_numpy()


def as_targets(labels: np.ndarray, outputs: int) -> np.ndarray:
    """``(rows, outputs)`` float32 to stand beside soft labels: 1 for a row's class, or several labels as they are."""
    if labels.ndim > 1:
        return labels.astype(np.float32)
    targets = np.zeros((len(labels), outputs), dtype=np.float32)
    targets[np.arange(len(labels)), labels] = 1
    return targets
