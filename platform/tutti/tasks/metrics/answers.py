"""Exact match and F1 of answers to questions, by the rules of SQuAD's own script (version 2.0)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """The answer in lower case, without ASCII punctuation and English articles, one space between words.

    >>> normalized("The  U.S. Army!")
    'us army'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def answer_scores(given: str, right: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of one answer, against the right one that fits best. An empty one says that there is none.

    Args:
        right: all right answers; none, or none that is more than punctuation and articles, where there is no answer.
    """
    golds = [answer for answer in right if normalized(answer)] or [""]
    return max(float(normalized(given) == normalized(gold)) for gold in golds), max(_f1(given, gold) for gold in golds)


def _f1(given: str, right: str) -> float:
    found, true = normalized(given).split(), normalized(right).split()
    if not found or not true:
        return float(found == true)
    shared = sum((Counter(found) & Counter(true)).values())
    return 2 * shared / (len(found) + len(true))


def squad_f1(right: np.ndarray, given: np.ndarray, *, outputs: int) -> float:
    """The mean F1 of answers.

    Args:
        right: ``(rows,)`` of sequences, as of ``answer_scores``.
        given: ``(rows,)`` of str.
    """
    return squad_scores(given, right)[1]


def squad_exact_match(right: np.ndarray, given: np.ndarray, *, outputs: int) -> float:
    """The share of answers that match exactly; arguments as of ``squad_f1``."""
    return squad_scores(given, right)[0]


def squad_scores(given: Sequence[str] | np.ndarray, right: Sequence[Sequence[str]] | np.ndarray) -> tuple[float, float]:
    """The means of ``answer_scores`` over questions, from 0 to 1."""
    scores = [answer_scores(one, golds) for one, golds in zip(given, right, strict=True)]
    exact, f1 = (sum(each) / max(len(scores), 1) for each in zip(*scores, strict=True))
    return exact, f1
