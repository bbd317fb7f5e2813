"""Rows of several files that are one part of a task, and of files of which a trial run takes some rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tutti.tasks.layouts.reading import own_ids


def join_files(parts: dict[str, pd.DataFrame]) -> None:
    """Takes the rows of ``train-N`` and ``unlabeled-N`` to those of the first file."""
    for part in ("train", "unlabeled"):
        further = [name for name in parts if name.startswith(f"{part}-")]
        if further:
            rows = pd.concat([parts[part], *(parts.pop(name) for name in further)], ignore_index=True)
            parts[part] = rows.assign(id=own_ids(rows["id"].tolist()))


def at_most(rows: pd.DataFrame, most: int | None) -> pd.DataFrame:
    """The rows, or so many of them that are spread evenly: a file may be sorted by its labels."""
    if most is None or len(rows) <= most:
        return rows
    kept = rows.iloc[np.linspace(0, len(rows) - 1, most).astype(int)].reset_index(drop=True)
    kept.attrs = rows.attrs
    return kept
