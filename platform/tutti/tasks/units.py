"""Units of a text: the words or characters of which each has a tag."""

from __future__ import annotations

import re
from typing import Literal, get_args

import numpy as np

Unit = Literal["word", "character", "piece"]
"""``word``: what stands between spaces, of files that list words; ``character``: each one, of files that list these;
``piece``: words, ideographs and signs of running text, of files that mark parts of it by their offsets."""

UNITS: tuple[Unit, ...] = get_args(Unit)
_NO_BREAK = "\u00a0"  # a space within a listed word, which would otherwise become two
_WORDS = re.compile(r"[^ ]+")
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # each is a word
_PIECES = re.compile(rf"[{_IDEOGRAPHS}]|[^\W_{_IDEOGRAPHS}]+|[^\w\s]|_")


def spans_of(text: str, unit: str) -> np.ndarray:
    """``(units, 2)`` int64: where each unit begins and ends in the text, in characters.

    >>> spans_of("Empire State", "word").tolist()
    [[0, 6], [7, 12]]
    """
    if unit == "character":
        starts = np.arange(len(text))
        return np.stack([starts, starts + 1], axis=1)
    found = (_PIECES if unit == "piece" else _WORDS).finditer(text)
    return np.array([match.span() for match in found], dtype=np.int64).reshape(-1, 2)


def units_of(text: str, unit: str) -> list[str]:
    """The units themselves."""
    if unit == "character":
        return list(text)
    return (_PIECES if unit == "piece" else _WORDS).findall(text)


def joined(units: list[str], unit: str) -> str:
    """The text of listed words or characters, of which ``units_of`` gives these again; spaces in words do not break."""
    if unit == "character":
        return "".join(units)
    return " ".join(one.replace(" ", _NO_BREAK) or _NO_BREAK for one in units)
