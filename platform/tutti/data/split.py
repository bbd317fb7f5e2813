"""Class names, and the stratified split of one task's rows into training and validation parts or into folds.

Rows of one group, which have the same texts, stay together: a model that was trained on a text is not judged on it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from tutti.errors import Fault, TaskFileError

_QUANTILES = 10  # strata of a regression's values
_FEW_ROWS = 5  # rows with equal texts that are held out together, however few are to be held out


def validation_rows(labels: np.ndarray, groups: np.ndarray, *, share: float, seed: int, task: str) -> np.ndarray:
    """Chooses the validation rows: stratified, shuffled, and reproducible on any machine.

    A group counts as one row, of its rarest class. These stay in training: the only group of a class, and groups of
    more than a tenth of the rows to hold out. At least as many groups are held out as there are other classes.

    Args:
        labels: ``(rows,)`` class indices of any integer type.
        groups: ``(rows,)`` the group of each row, numbered from 0 in order of appearance.
        share: the share of groups to hold out, strictly between 0 and 1.
        seed: of the study; each task has its own random stream, independent of the other tasks.

    Returns:
        ``(held out,)`` int64 row indices in ascending order.

    Raises:
        TaskFileError: if no class has two groups, or a class would have no training row left.
    """
    from sklearn.model_selection import train_test_split  # slow to import

    strata, movable = _rarest_classes(labels, groups), _not_too_large(groups, share)
    counts = np.bincount(strata[movable], minlength=int(strata.max()) + 1)
    candidates = np.flatnonzero(movable & (counts[strata] >= 2))
    classes = int((counts >= 2).sum())
    if not classes:
        rule = "have a class with two rows or more of different texts to split"
        remedy = "add rows, or name a validation file"
        raise TaskFileError(Fault(f"task {task}", rule, "none", remedy))
    held_out = min(max(math.ceil(share * len(candidates) - 1e-9), classes), len(candidates) - classes)
    task_seed = stream_seed(seed, task)
    _, chosen = train_test_split(candidates, test_size=held_out, stratify=strata[candidates], random_state=task_seed)
    rows = np.flatnonzero(np.isin(groups, chosen))
    check_training_rows(labels, np.delete(labels, rows), share=share, task=task)
    return rows


def validation_values(values: np.ndarray, groups: np.ndarray, *, share: float, seed: int, task: str) -> np.ndarray:
    """Chooses the validation rows of a regression: like ``validation_rows``, stratified by quantiles of the values.

    There are as many quantiles as held-out groups, but at most ``_QUANTILES``.

    Args:
        values: ``(rows,)`` of any float type.

    Raises:
        TaskFileError: if there are fewer than three groups.
    """
    from scipy.stats import rankdata  # slow to import
    from sklearn.model_selection import train_test_split

    candidates = np.flatnonzero(_not_too_large(groups, share))
    count = len(candidates)
    if count < 3:
        rule = "have three rows or more of different texts to split"
        remedy = "add rows, or name a validation file"
        raise TaskFileError(Fault(f"task {task}", rule, str(count), remedy))
    held_out = min(max(math.ceil(share * count - 1e-9), 2), count - 1)  # at least two, to compute a correlation
    ranks = rankdata(values[_first_rows(groups)][candidates], method="ordinal") - 1  # from 0
    strata = ranks * min(_QUANTILES, held_out, count - held_out) // count
    task_seed = stream_seed(seed, task)
    _, chosen = train_test_split(candidates, test_size=held_out, stratify=strata, random_state=task_seed)
    return np.flatnonzero(np.isin(groups, chosen))


def fold_numbers(
    labels: np.ndarray, groups: np.ndarray, *, extra: np.ndarray, names: Sequence[str], folds: int, seed: int, task: str
) -> np.ndarray:
    """Assigns each row to the fold in which it is validated: stratified, shuffled, and reproducible.

    A group counts as one row, of its rarest class or its first value. Folds differ by at most one group, in total and
    per class; a class with fewer groups than folds is missing in some. For a regression, each run of ``folds`` groups
    with neighbouring values contributes one group to each fold.

    Args:
        labels: ``(rows,)`` class indices of any integer type, or values of any float type.
        groups: ``(rows,)`` the group of each row, numbered from 0 in order of appearance.
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

    first = _first_rows(groups)
    count = len(first)
    if count < folds:
        rule = f"have at least {folds} training rows of different texts for {folds} folds"
        raise TaskFileError(Fault(f"task {task}", rule, f"{count}", "lower split.folds, or add rows"))
    strata = _rarest_classes(labels, groups) if len(names) else (rankdata(labels[first], method="ordinal") - 1) // folds
    # Groups are sorted by stratum, in random order within each, and dealt to the folds in turn. So each stratum is
    # spread over as many folds as possible.
    order = np.lexsort((np.random.default_rng(stream_seed(seed, task)).random(count), strata))
    dealt = np.empty(count, dtype=np.int32)
    dealt[order] = np.arange(count, dtype=np.int32) % folds
    numbers = dealt[groups]
    check_folds(labels, numbers, extra=extra, names=names, task=task)
    return numbers


def check_folds(labels: np.ndarray, numbers: np.ndarray, *, extra: np.ndarray, names: Sequence[str], task: str) -> None:
    """Raises TaskFileError where the training rows of a fold would lack a class; arguments as in ``fold_numbers``."""
    single = [
        name
        for index, name in enumerate(names)
        if not (extra == index).any() and len(np.unique(numbers[labels == index])) == 1
    ]
    if single:
        rule = "have training rows of each class outside each fold"
        got = f"all rows of {', '.join(map(repr, single[:5]))}{' and others' * (len(single) > 5)} in one fold"
        remedy = "add rows of other texts, or set split.validation instead of split.folds"
        raise TaskFileError(Fault(f"task {task}", rule, got, remedy))


def check_training_rows(labels: np.ndarray, kept: np.ndarray, *, share: float, task: str) -> None:
    """Raises TaskFileError where a class has no training row left.

    Args:
        kept: the class indices that are left.
    """
    if len(np.unique(kept)) < len(np.unique(labels)):
        rule, got = "keep a training row of each class after the split", f"a validation share of {share}"
        raise TaskFileError(Fault(f"task {task}", rule, got, "lower split.validation, or name a validation file"))


def _first_rows(groups: np.ndarray) -> np.ndarray:
    """``(groups,)``: the index of the first row of each group."""
    return np.unique(groups, return_index=True)[1]


def _rarest_classes(labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """``(groups,)`` the class of each group that has the fewest rows in all, so that no class is left to chance."""
    order = np.lexsort((np.bincount(labels)[labels], groups))
    return labels[order[np.unique(groups[order], return_index=True)[1]]]


def _not_too_large(groups: np.ndarray, share: float) -> np.ndarray:
    """``(groups,)`` bool: whether a group is too small to dominate a validation part, or as large as is usual."""
    sizes = np.bincount(groups)
    return sizes <= max(share * len(groups) / 10, _FEW_ROWS, float(np.median(sizes)))


def stream_seed(seed: int, name: str) -> int:
    """The seed of the random stream of a name, such as a task's."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "big")
