"""Class names, and the stratified split of training rows into training and validation parts or into folds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

import numpy as np

from tutti.errors import Fault, TaskFileError
from tutti.tasks.layouts.reading import NUMBER

_QUANTILES = 10  # strata of a regression's values


def ordered_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels, in numeric order if all are numbers, otherwise in alphabetical order."""
    names = sorted(set(labels))
    return tuple(sorted(names, key=float) if all(map(NUMBER.fullmatch, names)) else names)


def validation_rows(labels: np.ndarray, *, share: float, seed: int, task: str) -> np.ndarray:
    """Chooses the validation rows: stratified, shuffled, and reproducible on any machine.

    A class with a single row stays in training. At least as many rows are held out as there are other classes.

    Args:
        labels: ``(rows,)`` class indices of any integer type.
        share: the share of rows to hold out, strictly between 0 and 1.
        seed: of the study; each task has its own random stream, independent of the other tasks.

    Returns:
        ``(held out,)`` int64 row indices in ascending order.

    Raises:
        TaskFileError: if no class has two rows, or a class would have no training row left.
    """
    from sklearn.model_selection import train_test_split  # slow to import

    counts = np.bincount(labels)
    candidates = np.flatnonzero(counts[labels] >= 2)
    classes = int((counts >= 2).sum())
    if not classes:
        remedy = "add rows, or name a validation file"
        raise TaskFileError(Fault(f"task {task}", "have a class with two rows or more to split", "none", remedy))
    held_out = min(max(math.ceil(share * len(candidates) - 1e-9), classes), len(candidates) - classes)
    task_seed = _task_seed(seed, task)
    _, chosen = train_test_split(candidates, test_size=held_out, stratify=labels[candidates], random_state=task_seed)
    remaining = counts - np.bincount(labels[chosen], minlength=len(counts))
    if (remaining[counts > 0] == 0).any():
        rule, got = "keep a training row of each class after the split", f"a validation share of {share}"
        raise TaskFileError(Fault(f"task {task}", rule, got, "lower split.validation, or name a validation file"))
    return np.sort(chosen).astype(np.int64)


def validation_values(values: np.ndarray, *, share: float, seed: int, task: str) -> np.ndarray:
    """Chooses the validation rows of a regression: like ``validation_rows``, stratified by quantiles of the values.

    There are as many quantiles as held-out rows, but at most ``_QUANTILES``.

    Args:
        values: ``(rows,)`` of any float type.

    Raises:
        TaskFileError: if there are fewer than three rows.
    """
    from scipy.stats import rankdata  # slow to import
    from sklearn.model_selection import train_test_split

    rows = len(values)
    if rows < 3:
        rule, remedy = "have three rows or more to split", "add rows, or name a validation file"
        raise TaskFileError(Fault(f"task {task}", rule, str(rows), remedy))
    held_out = min(max(math.ceil(share * rows - 1e-9), 2), rows - 1)  # at least two, to compute a correlation
    ranks = rankdata(values, method="ordinal") - 1  # from 0
    groups = ranks * min(_QUANTILES, held_out, rows - held_out) // rows
    task_seed = _task_seed(seed, task)
    _, chosen = train_test_split(np.arange(rows), test_size=held_out, stratify=groups, random_state=task_seed)
    return np.sort(chosen).astype(np.int64)


def fold_numbers(
    labels: np.ndarray, *, extra: np.ndarray, names: Sequence[str], folds: int, seed: int, task: str
) -> np.ndarray:
    """Assigns each row to the fold in which it is validated: stratified, shuffled, and reproducible.

    Folds differ by at most one row, in total and per class; a class with fewer rows than folds is missing in some.
    For a regression, each run of ``folds`` rows with neighbouring values contributes one row to each fold.

    Args:
        labels: ``(rows,)`` class indices of any integer type, or values of any float type.
        extra: labels of the rows that train in every fold and are never validated.
        names: the class names; empty for a regression.
        folds: at least 2.
        seed: of the study; each task has its own random stream, independent of the other tasks.

    Returns:
        ``(rows,)`` int32, from 0 to ``folds`` - 1.

    Raises:
        TaskFileError: if a fold would have no row, or its training rows would lack a class.
    """
    from scipy.stats import rankdata  # slow to import

    what, count = f"task {task}", len(labels)
    if count < folds:
        rule, remedy = f"have at least {folds} training rows for {folds} folds", "lower split.folds, or add rows"
        raise TaskFileError(Fault(what, rule, f"{count}", remedy))
    single = [name for index, name in enumerate(names) if (labels == index).sum() == 1 and not (extra == index).any()]
    if single:
        rule = "have two training rows or more of each class, so that it can be trained on in every fold"
        got = f"one row of {', '.join(map(repr, single[:5]))}{' and others' * (len(single) > 5)}"
        raise TaskFileError(Fault(what, rule, got, "add rows, or set split.validation instead of split.folds"))
    groups = labels if len(names) else (rankdata(labels, method="ordinal") - 1) // folds
    # Rows are sorted by group, in random order within each group, and dealt to the folds in turn. So each group is
    # spread over as many folds as possible.
    order = np.lexsort((np.random.default_rng(_task_seed(seed, task)).random(count), groups))
    numbers = np.empty(count, dtype=np.int32)
    numbers[order] = np.arange(count, dtype=np.int32) % folds
    return numbers


def _task_seed(seed: int, task: str) -> int:
    """The seed of a task's own random stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task}".encode()).digest()[:4], "big")
