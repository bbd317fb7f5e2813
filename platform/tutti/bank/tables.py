"""Converts the predictions for one part to a Parquet table and back."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutti.tasks.kinds.columns import label_array, label_column, padded
from tutti.tasks.predictions import Predictions

_NAMES, _KIND = b"tutti.classes", b"tutti.kind"


def to_parquet(predictions: Predictions) -> bytes:
    """The predictions as the bytes of a Parquet file.

    Columns: ``id`` (string), ``label`` (int64, float32, string or a list of float32; absent without labels), then
    ``p0``, ``p1``, ... (float32), one for each output, or ``value`` (float32 or string) for a single one, or ``units``
    (list of float32), those of all units of a row one after another; of texts ``log_probability`` (float32). The
    schema's metadata has the outputs' names, in the order of the columns,
    as a JSON list under ``tutti.classes``, and the kind under ``tutti.kind`` unless it is ``classes`` or ``value``,
    which the columns tell.
    """
    columns = {"id": pa.array(predictions.ids.tolist(), pa.string())}
    if predictions.labels is not None:
        columns["label"] = label_column(predictions.labels)
    if predictions.kind.sequential:
        present = ~np.isnan(predictions.outputs[..., 0])
        starts = np.append(0, present.sum(axis=1).cumsum()) * predictions.outputs.shape[2]
        values = pa.array(predictions.outputs[present].ravel(), pa.float32())
        columns["units"] = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values)
    elif predictions.names:
        by_output = np.ascontiguousarray(predictions.outputs.T, dtype=np.float32)
        columns |= {f"p{index}": pa.array(column) for index, column in enumerate(by_output)}
    else:
        texts = predictions.outputs.dtype == object
        columns["value"] = pa.array(predictions.outputs, pa.string() if texts else pa.float32())
    if predictions.log_probabilities is not None:
        columns["log_probability"] = pa.array(predictions.log_probabilities, pa.float32())
    metadata = {_NAMES: json.dumps(predictions.names, ensure_ascii=False)}
    if predictions.kind_name not in ("classes", "value"):
        metadata[_KIND] = predictions.kind_name
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def from_parquet(content: bytes) -> Predictions:
    """The predictions in the output of ``to_parquet``.

    Raises:
        pyarrow.ArrowException, KeyError, ValueError, TypeError, OSError: if the bytes are not such a table.
        StorageError: if the numbers are not valid predictions.
    """
    # A thread of Arrow's pools that lets go of the content, a Python object, while Python exits aborts the process.
    table = pq.read_table(pa.BufferReader(content), use_threads=False, pre_buffer=False)
    metadata = table.schema.metadata or {}
    names = tuple(json.loads(metadata[_NAMES]))
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"names of outputs that are no texts: {names!r:.80}")
    outputs = np.empty((table.num_rows, len(names)), dtype=np.float32)
    if "units" in table.column_names:
        outputs = padded(table["units"], np.nan, width=len(names))
    else:
        for index in range(len(names)):
            outputs[:, index] = table[f"p{index}"].to_numpy()
    return Predictions(
        ids=np.array(table["id"].to_pylist(), dtype=np.str_),
        outputs=outputs if names else table["value"].to_numpy(),
        labels=label_array(table["label"]) if "label" in table.column_names else None,
        names=names,
        kind_name=metadata.get(_KIND, b"").decode(),
        log_probabilities=table["log_probability"].to_numpy() if "log_probability" in table.column_names else None,
    )
