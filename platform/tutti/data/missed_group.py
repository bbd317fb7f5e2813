"""Finds a column by which rows belong together that the study may have missed to name as ``split.group``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

NAMED = re.compile(r"(.*?): .*`split: \{group: (.*)\}`")
"""A task's notice: the task and the column."""

_MOST_ROWS = 20  # per value on average: a column of fewer, larger values is a category, such as a language
_FEWEST_VALUES = 20
_ERRORS = 5  # standard errors from chance
_DIFFERENCE = 0.1  # from chance, relative


def missed_group(
    strata: np.ndarray, columns: Mapping[str, Sequence[object]], *, texts: Mapping[str, str]
) -> str | None:
    """A notice, where random rows would part those that share a text, or a value that tells of their labels.

    Half of the rows or more must share their value with another, values must be many, and each of few rows. Except for
    texts, which a model reads, labels of rows with one value must also agree more often than chance would have it, or
    less often, as those of three hypotheses for one premise: otherwise a column of ages or lengths would be taken for
    one of groups.

    Args:
        strata: ``(rows, strata)``, as of ``Kind.indicators``.
        columns: by name, a value for each row.
        texts: what the columns among them that are texts are called, such as ``the first text``.
    """
    for name, cells in columns.items():
        try:
            codes = pd.factorize(pd.Series([None if cell == "" else cell for cell in cells], dtype=object))[0]
        except TypeError:  # lists and mappings
            continue
        known = codes >= 0
        sizes = np.bincount(codes[known])
        shared = int(sizes[sizes > 1].sum())
        if shared * 2 < len(codes) or len(sizes) < _FEWEST_VALUES or known.sum() > _MOST_ROWS * len(sizes):
            continue
        if name in texts or _tells_of_labels(codes[known], sizes, strata[known]):
            what = texts.get(name, f"their value of the column {name!r}")
            rows = f"{shared:,} of {len(codes):,} rows share {what} with others"
            return f"{rows}; to hold them out together, set `split: {{group: {name}}}`"
    return None


def _tells_of_labels(codes: np.ndarray, sizes: np.ndarray, strata: np.ndarray) -> bool:
    """Whether rows of one value agree in their stratum clearly more or less often than any two rows do."""

    def pairs(counts: np.ndarray) -> float:
        return float((counts * (counts - 1) / 2).sum())

    by_value = np.zeros((len(sizes), strata.shape[1]))
    np.add.at(by_value, codes, strata)
    count = pairs(sizes.astype(np.float64))
    chance = pairs(strata.sum(axis=0, dtype=np.float64)) / pairs(np.array([len(codes)], dtype=np.float64))
    difference = abs(pairs(by_value) / count - chance)
    error = (chance * (1 - chance) / count) ** 0.5
    return bool(difference > max(_ERRORS * error, _DIFFERENCE * chance))
