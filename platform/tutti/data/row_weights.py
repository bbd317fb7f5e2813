"""Weights of training rows in the loss, from a column of their file."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tutti.errors import Fault, TaskFileError
from tutti.tasks.number_text import parse_number


def row_weights(rows: pd.DataFrame, *, origin: str) -> np.ndarray:
    """``(rows,)`` float32 of the column ``weight``, as it was read from ``origin``.

    Raises:
        TaskFileError: where one is no number of at least 0, or all are 0.
    """
    weights = np.array(list(map(parse_number, rows["weight"].astype(str))), dtype=np.float32)
    what, rule = f"{origin}, the column of `row_weight`", "have numbers of at least 0"
    if len(bad := np.flatnonzero(~((weights >= 0) & np.isfinite(weights)))):
        got = f"{rows['weight'].iloc[bad[0]]!r} in the row with the id {rows['id'].iloc[bad[0]]}"
        got += f", and {len(bad) - 1} more" * (len(bad) > 1)
        raise TaskFileError(Fault(what, rule, got, "correct the cells, with 0 for rows that teach nothing"))
    if not weights.any():
        raise TaskFileError(Fault(what, f"{rule}, and some above it", "0 in every row", "name another column"))
    return weights
