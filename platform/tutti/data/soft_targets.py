"""Soft labels of training rows: probabilities of a file's columns, merged into one in the order of the task's names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tutti.tasks.layouts.soft import PROBABILITY


def soft_classes(rows: pd.DataFrame) -> list[str]:
    """The classes for which the rows have probabilities; empty without soft labels."""
    return [name.removeprefix(PROBABILITY) for name in map(str, rows) if name.startswith(PROBABILITY)]


def is_soft(train: pd.DataFrame) -> np.ndarray:
    """``(rows,)`` bool: whether each row has probabilities, which rows of other files lack."""
    names = [PROBABILITY + name for name in soft_classes(train)]
    return train[names].notna().any(axis=1).to_numpy(dtype=bool)


def with_targets(train: pd.DataFrame, classes: Sequence[str], *, exclusive: bool) -> pd.DataFrame:
    """Merges the probability columns of soft labels, if any, into the column ``probabilities``, in the names' order.

    Args:
        exclusive: whether they sum to 1; then those of classes that a file lacks are 0, otherwise they are unknown.
    """
    known = soft_classes(train)
    if not known:
        return train
    unknown = 0 if exclusive else np.nan
    values = np.full((len(train), len(classes)), unknown, dtype=np.float32)
    for index, name in enumerate(classes):
        if name in known:
            values[:, index] = train[PROBABILITY + name].fillna(unknown)
    soft = is_soft(train)
    if exclusive:
        values[soft] /= values[soft].sum(axis=1, keepdims=True)
    targets = [row if is_soft else None for row, is_soft in zip(values, soft, strict=True)]
    rest = train.drop(columns=[PROBABILITY + name for name in known])
    return rest.assign(probabilities=pd.Series(targets, train.index, dtype=object))
