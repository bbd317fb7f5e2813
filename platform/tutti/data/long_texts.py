"""What becomes of rows that have more tokens than a model reads at once: they are cut, or read in windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tutti.records import TextLimit

WINDOWS = "windows"  # a column: the number of tokens of each window of a row


def fitted(encoding: Mapping[str, Any], names: Sequence[str], limit: TextLimit) -> dict[str, list[Any]]:
    """The columns ``names`` of encoded rows, and ``WINDOWS``, after long rows became what the limit says.

    Args:
        encoding: of a tokenizer that cut no row, with special_tokens_mask.
        limit: with any ``truncation`` but ``longest_first``.
    """
    columns = {name: list(encoding[name]) for name in names if name in encoding}
    windows = [[len(tokens)] for tokens in encoding["input_ids"]]
    for row, special in enumerate(encoding["special_tokens_mask"]):
        if len(special) > limit.max_length:
            inputs = inputs_of(np.array(special, dtype=bool), limit)
            places, windows[row] = np.concatenate(inputs), list(map(len, inputs))
            for values in columns.values():
                values[row] = np.array(values[row], dtype=np.int32)[places]
    return {**columns, WINDOWS: windows}


def inputs_of(special: np.ndarray, limit: TextLimit) -> list[np.ndarray]:
    """The places of the tokens of each input that a row too long becomes, in order: one input, or several windows.

    Args:
        special: ``(tokens,)`` bool, the tokens that the tokenizer has added around the row's texts.
        limit: with any ``truncation`` but ``longest_first``.
    """
    added, own = np.flatnonzero(special), np.flatnonzero(~special)
    texts = np.split(own, np.flatnonzero(np.diff(own) > 1) + 1)  # of a pair two, unless one is empty
    room = limit.max_length - len(added)
    if limit.truncation == "windows":
        *shorter, longer = sorted(texts, key=len)
        return [np.sort(np.concatenate([added, *parts])) for parts in windows_of(longer, shorter, room, limit.stride)]
    shares = _shares(texts, room, limit.truncation)
    kept = [cut(text, count, limit.truncation) for text, count in zip(texts, shares, strict=True)]
    return [np.sort(np.concatenate([added, *kept]))]


def cut(text: np.ndarray, count: int, truncation: str) -> np.ndarray:
    """So many tokens of a text: its first ones, its last ones, or those at both ends."""
    if truncation == "head_tail":
        return _ends(text, count)
    return text[len(text) - min(count, len(text)) :] if truncation == "tail" else text[:count]


def _shares(texts: list[np.ndarray], room: int, truncation: str) -> list[int]:
    """Tokens that each text keeps: the longer one gives way until both are of a length, or one of them alone as long
    as there is any of it.
    """
    if len(texts) == 1:
        return [room]
    if truncation in ("only_first", "only_second"):
        whole = min(len(texts[truncation == "only_first"]), room)
        return [room - whole, whole] if truncation == "only_first" else [whole, room - whole]
    first = min(len(texts[0]), max(room - len(texts[1]), room // 2))
    return [first, room - first]


def _ends(text: np.ndarray, count: int) -> np.ndarray:
    """The first and the last tokens of a text, so many in all."""
    tail = count // 2 if count < len(text) else 0
    return np.concatenate([text[: count - tail], text[len(text) - tail :]])


def windows_of(text: np.ndarray, beside: Sequence[np.ndarray], room: int, stride: int) -> list[list[np.ndarray]]:
    """The tokens of each text in each window, as many in all as there is room.

    The windows are spread evenly over the text. What stands beside it is in each of them, cut to half of the room.
    """
    others = [one[: room // 2] for one in beside]
    width = room - sum(map(len, others))
    hidden = max(len(text) - width, 0)
    count = 1 + math.ceil(hidden / (width - min(stride, width // 2)))
    starts = np.rint(np.linspace(0, hidden, count)).astype(int)
    return [[*others, text[start : start + width]] for start in starts]


def kept_of_first(encoding: Mapping[str, Any], row: int, limit: TextLimit, *, second: int) -> np.ndarray | None:
    """The places of the tokens that an encoded pair keeps whose first text alone is cut; None if none is left of it.

    Args:
        encoding: of a tokenizer that cut no row, with special_tokens_mask.
        row: of the encoding.
        second: the number of tokens of the second text.
    """
    special = np.array(encoding["special_tokens_mask"][row], dtype=bool)
    own = np.flatnonzero(~special)
    first, rest = own[: len(own) - second], own[len(own) - second :]
    room = limit.max_length - int(special.sum()) - len(rest)
    if room < 1:
        return None
    kept = cut(first, room, limit.truncation)
    return np.sort(np.concatenate([np.flatnonzero(special), kept, rest]))
