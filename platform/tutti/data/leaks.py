"""Rows of a validation file that are training rows too."""

from __future__ import annotations

import pandas as pd

from tutti.data.clean import have_texts_of
from tutti.errors import Fault, TaskFileError
from tutti.tasks.build import TaskSpec


def leak_notices(spec: TaskSpec, train: pd.DataFrame, held_out: pd.DataFrame) -> list[str]:
    """A notice of the rows of a validation file that are training rows too: these are scored as learnt by heart."""
    learnt, rows = int(have_texts_of(held_out, train).sum()), len(held_out)
    source = spec.layout.origin(spec.sources["validation"])
    if learnt == rows:
        got = f"the texts of training rows in {'its only row' if rows == 1 else f'all {rows} rows'}"
        remedy = "name a file of other rows, or leave `validation:` out, so that training rows are held out"
        raise TaskFileError(Fault(source, "have rows that are not trained on", got, remedy))
    if not learnt:
        return []
    are = "is a training row" if learnt == 1 else "are training rows"
    return [f"{learnt} of {rows} rows of {source} {are} too (the same texts), which makes the scores too high"]
