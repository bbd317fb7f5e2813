"""Soft labels: a Parquet file of training rows with a probability for each class instead of a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pandas import DataFrame

from tutti.errors import Fault, TaskFileError, first_line
from tutti.files import whole_file
from tutti.tasks.layouts.cells import cell_text
from tutti.tasks.layouts.parquet import UNREADABLE
from tutti.tasks.layouts.reading import CellCheck, FileSource, check_names, checked_frame, existing_file
from tutti.tasks.layouts.several import by_columns

PROBABILITY = "probability of "
"""Prefix of the class name in the columns that ``SoftLabels.read`` adds."""

SUFFIX = ".soft.parquet"
"""How the names of such files end that Tutti writes."""

_COLUMN = "probabilities"
_SHOWN = 10
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


@dataclass(frozen=True)
class SoftLabels(FileSource):
    """Columns ``id``, ``text``, ``text_b`` (pairs), ``choices`` (candidates, lists of JSON) and ``probabilities``, a
    struct with a float for each class.

    ``read`` returns the most probable class as ``label``, and a float32 column ``PROBABILITY + CLASS`` for each class.
    ``write`` expects the same columns.

    Attributes:
        pair: whether a row has two texts.
        exclusive: whether a row's probabilities sum to 1, as those of classes do, and those of several labels do not.
        choices: whether a row has candidates of its own.
    """

    pair: bool = False
    exclusive: bool = True
    choices: bool = False

    def read(self, source: str, *, labelled: bool, check: CellCheck | None = None) -> DataFrame:
        existing_file(source)
        texts = self._texts()
        try:
            table = pq.ParquetFile(source).read()
            check_names(table.column_names, source)
            cells = {name: table.column(name).to_pylist() for name in texts if name in table.column_names}
        except UNREADABLE as error:
            got = first_line(error)
            remedy = "name the file that `tutti pseudo-label` wrote, or take out `labels: soft`"
            raise TaskFileError(Fault(source, "be a Parquet file of soft labels", got, remedy)) from error
        present = table.column_names
        if missing := [name for name in (*texts, _COLUMN) if name not in present]:
            rule, got = f"have the columns {', '.join((*texts, _COLUMN))}", f"{', '.join(present) or 'none'}"
            remedy = f"add {', '.join(missing)}, or take out `labels: soft` where each row has one label"
            raise TaskFileError(Fault(source, rule, got, remedy))
        for name in texts:
            kind = table.schema.field(name).type
            if pa.types.is_nested(kind) or any(check(kind) for check in _BYTES):
                rule, remedy = f"have texts or numbers in {name!r}", "name a column of texts"
                raise TaskFileError(Fault(source, rule, f"a column of the type {kind}", remedy))
        classes, probabilities = _probabilities(table.column(_COLUMN), source)
        columns = {name: list(map(cell_text, values)) for name, values in cells.items()}
        if self.exclusive:
            columns["label"] = [classes[index] for index in probabilities.argmax(axis=1)] if table.num_rows else []
        else:
            columns["label"] = by_columns(
                dict(zip(classes, np.where(probabilities.T >= 0.5, "1", "0").tolist(), strict=True))
            )
        faults = _row_faults(probabilities, source, exclusive=self.exclusive)
        places = range(1, 1 + table.num_rows)
        frame = checked_frame(columns, origin=source, places=places, place="row", faults=faults)
        return frame.assign(**{PROBABILITY + name: probabilities[:, index] for index, name in enumerate(classes)})

    def write(self, rows: DataFrame, path: Path) -> None:
        names = [name for name in map(str, rows) if name.startswith(PROBABILITY)]
        by_class = [pa.array(rows[name], pa.float32()) for name in names]
        struct = pa.StructArray.from_arrays(by_class, [name.removeprefix(PROBABILITY) for name in names])
        columns = {name: pa.array(rows[name], pa.string()) for name in self._texts()}
        with whole_file(path) as temporary:
            pq.write_table(pa.table({**columns, _COLUMN: struct}), temporary, compression="zstd")

    def _texts(self) -> list[str]:
        return ["id", "text", *["text_b"] * self.pair, *["choices"] * self.choices]


def _probabilities(column: pa.ChunkedArray, source: str) -> tuple[list[str], np.ndarray]:
    """The classes, and their ``(rows, classes)`` float32 probabilities; NaN for rows without any."""
    kind = column.type
    if not pa.types.is_struct(kind) or not all(pa.types.is_floating(field.type) for field in kind):
        rule, remedy = f"have a float for each class in the struct {_COLUMN}", "write the file again"
        raise TaskFileError(Fault(source, rule, f"a column of the type {kind}", remedy))
    names = [field.name for field in kind]
    if len(set(names)) < max(len(names), 2):
        rule, got = f"have two classes or more, each once, in {_COLUMN}", ", ".join(names) or "none"
        raise TaskFileError(Fault(source, rule, got, "write the file again"))
    values = np.empty((len(column), len(names)), dtype=np.float32)
    for index, part in enumerate(column.combine_chunks().flatten() if len(column) else ()):
        values[:, index] = part.to_numpy(zero_copy_only=False)
    return names, values


def _row_faults(values: np.ndarray, source: str, *, exclusive: bool) -> Sequence[Fault]:
    with np.errstate(invalid="ignore"):
        valid = (values >= 0).all(axis=1) & (values <= 1 + 1e-3).all(axis=1)
        if exclusive:
            valid &= np.isclose(values.sum(axis=1, dtype=np.float64), 1, atol=1e-3)
    rule = "have probabilities of at least 0 that sum to 1" if exclusive else "have probabilities from 0 to 1"
    faults = []
    for row in np.flatnonzero(~valid):
        got = ", ".join(f"{value:.4g}" for value in values[row][:_SHOWN]) + ", ..." * (values.shape[1] > _SHOWN)
        faults.append(Fault(f"{source}, row {row + 1}", rule, got, "correct the row, or take it out"))
    return faults
