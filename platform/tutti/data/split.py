"""Class names, and the stratified split of training rows."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable

import numpy as np

from tutti.errors import Fault, TaskFileError

_INTEGER = re.compile(r"-?[0-9]+")


def ordered_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels that occur, each once: in numeric order if all are integers, otherwise alphabetically."""
    names = sorted(set(labels))
    return tuple(sorted(names, key=int) if all(map(_INTEGER.fullmatch, names)) else names)


def validation_rows(labels: np.ndarray, *, share: float, seed: int, task: str) -> np.ndarray:
    """Chooses the rows that are held out: stratified and shuffled, the same for the same arguments on any machine.

    A class with a single row stays in training. At least as many rows are held out as there are other classes.

    Args:
        labels: ``(rows,)`` class indices of any integer type.
        share: of the rows, strictly between 0 and 1.
        seed: of the study; each task draws from a stream of its own, whatever tasks stand beside it.

    Returns:
        ``(held out,)`` int64 row indices in ascending order.

    Raises:
        TaskFileError: where no class has two rows, or a class would keep no training row.
    """
    from sklearn.model_selection import train_test_split  # slow to import

    counts = np.bincount(labels)
    candidates = np.flatnonzero(counts[labels] >= 2)
    classes = int((counts >= 2).sum())
    if not classes:
        remedy = "add rows, or name a validation file"
        raise TaskFileError(Fault(f"task {task}", "have a class with two rows or more to split", "none", remedy))
    held_out = min(max(math.ceil(share * len(candidates) - 1e-9), classes), len(candidates) - classes)
    stream = int.from_bytes(hashlib.sha256(f"{seed}/{task}".encode()).digest()[:4], "big")
    _, chosen = train_test_split(candidates, test_size=held_out, stratify=labels[candidates], random_state=stream)
    left = counts - np.bincount(labels[chosen], minlength=len(counts))
    if (left[counts > 0] == 0).any():
        rule, got = "keep a training row of each class after the split", f"a validation share of {share}"
        raise TaskFileError(Fault(f"task {task}", rule, got, "lower split.validation, or name a validation file"))
    return np.sort(chosen).astype(np.int64)
