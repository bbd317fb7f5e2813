"""Converts the predictions for one part to a Parquet table and back."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutti.records import Predictions

_CLASSES = b"tutti.classes"


def to_parquet(predictions: Predictions) -> bytes:
    """The predictions as the bytes of a Parquet file.

    Columns: ``id`` (string), ``label`` (int64, or float32 for regression; absent without labels), then ``p0``, ``p1``,
    ... (float32), one probability column per class, or ``value`` (float32) for regression. The schema's metadata has
    the class names, in the order of the columns, as a JSON list under ``tutti.classes``.
    """
    columns = {"id": pa.array(predictions.ids.tolist(), pa.string())}
    if predictions.labels is not None:
        columns["label"] = pa.array(predictions.labels)
    if predictions.probabilities is not None:
        by_class = np.ascontiguousarray(predictions.probabilities.T, dtype=np.float32)
        columns |= {f"p{index}": pa.array(column) for index, column in enumerate(by_class)}
    else:
        columns["value"] = pa.array(predictions.values, pa.float32())
    names = json.dumps(predictions.class_names, ensure_ascii=False)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns).replace_schema_metadata({_CLASSES: names}), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def from_parquet(content: bytes) -> Predictions:
    """The predictions in the output of ``to_parquet``.

    Raises:
        pyarrow.ArrowException, KeyError, ValueError, TypeError, OSError: if the bytes are not such a table.
        StorageError: if the numbers are not valid predictions.
    """
    # A thread of Arrow's pools that lets go of the content, a Python object, while Python exits aborts the process.
    table = pq.read_table(pa.BufferReader(content), use_threads=False, pre_buffer=False)
    names = tuple(json.loads((table.schema.metadata or {})[_CLASSES]))
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"class names that are no texts: {names!r:.80}")
    probabilities = np.empty((table.num_rows, len(names)), dtype=np.float32)
    for index in range(len(names)):
        probabilities[:, index] = table[f"p{index}"].to_numpy()
    return Predictions(
        ids=np.array(table["id"].to_pylist(), dtype=np.str_),
        probabilities=probabilities if names else None,
        values=None if names else table["value"].to_numpy(),
        labels=table["label"].to_numpy() if "label" in table.column_names else None,
        class_names=names,
    )
