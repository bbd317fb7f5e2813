"""Units of a text, of which each has a tag.

``word``: what stands between spaces, of files that list words; ``character``: each one, of files that list these;
``piece``: words, ideographs and signs of running text, of files that mark parts of it by their offsets.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import regex

_NO_BREAK = "\u00a0"  # a space within a listed word, which would otherwise become two
_WORDS = regex.compile(r"[^ ]+")
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # each is a word
_PIECES = regex.compile(
    rf"(?V1)[{_IDEOGRAPHS}]\p{{M}}*|[[\p{{L}}\p{{N}}\p{{M}}]--[{_IDEOGRAPHS}]]+|(?!\s)\X"
)  # accents stay with their letters, and what looks like one sign is one


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


def apart(text: str, spans: np.ndarray) -> tuple[str, np.ndarray]:
    """The text with a space on both sides of units that are symbols, such as emoji, and where these are then.

    Tokenizers take what touches a symbol that they do not know for one unknown word.
    """
    symbols = [unicodedata.category(text[start])[0] in "SC" if end > start else False for start, end in spans.tolist()]
    if not any(symbols):
        return text, spans
    touches = spans[1:, 0] == spans[:-1, 1]
    marked = np.array(symbols)
    gaps = (touches & (marked[1:] | marked[:-1])).astype(np.int64).tolist()
    moved = np.cumsum([0, *gaps])
    starts = [0, *spans[1:, 0].tolist(), len(text)]
    parts = [text[start:end] for start, end in pairwise(starts)]
    spaced = "".join(part + " " * gap for part, gap in zip(parts, [*gaps, 0], strict=True))
    return spaced, spans + moved[:, None]


def units_of(text: str, unit: str) -> list[str]:
    """The units themselves."""
    return [text[start:end] for start, end in spans_of(text, unit).tolist()]


def joined(units: list[str], unit: str) -> str:
    """The text of listed words or characters, of which ``units_of`` gives these again; spaces in words do not break."""
    if unit == "character":
        return "".join(units)
    return " ".join(one.replace(" ", _NO_BREAK) or _NO_BREAK for one in units)


def widened(outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """``(rows, units, tags)`` each, with as many units as the widest one: NaN for units that no row has."""
    units = max(each.shape[1] for each in outputs)
    return [np.pad(each, ((0, 0), (0, units - each.shape[1]), (0, 0)), constant_values=np.nan) for each in outputs]
