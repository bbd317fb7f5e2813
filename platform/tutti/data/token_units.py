"""Where the units of a row, its words or characters, are among its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tutti.data.long_texts import WINDOWS, windows_of
from tutti.data.special_tokens import BETWEEN, joins_pairs
from tutti.errors import BackboneError, Fault
from tutti.records import TextLimit
from tutti.tasks.units import apart, spans_of

PLACES = ("unit_window", "unit_first", "unit_last")
"""Columns of lists: for each unit its window, and there the places of its first and its last token. Where a word has
several tags, all words are there once for each."""

_OVERLAP = 4  # windows have at least one in so many tokens in common, where the study does not say how many


def encoded_units(
    texts: Mapping[str, Sequence[str]], tokenizer: Any, limit: TextLimit, *, names: Sequence[str]
) -> dict[str, list[Any]]:
    """The columns ``names`` of rows, with those of ``PLACES``. No token of them is cut away: a long row is read in
    windows, and each unit in the one where it has most of the text on both sides.

    Args:
        texts: the columns text and, read in front and in each window, such as a question, text_b; none of the units of
            the latter has a tag, and it is the first of the two.

    A unit that the tokenizer drops, such as a sign without a width, has the place of the token that follows it.

    Raises:
        BackboneError: where the tokenizer does not tell which characters a token is of.
    """
    if not tokenizer.is_fast:
        rule = "be a fast one for tasks of words with tags, which tells the characters of each token"
        raise BackboneError(
            Fault("the tokenizer of the backbone", rule, type(tokenizer).__name__, "name another backbone")
        )
    own_texts, beside = texts["text"], texts.get("text_b")
    limit = replace(limit, truncation="windows", stride=limit.stride or limit.max_length // _OVERLAP)
    spaced = [apart(text, spans_of(text, limit.unit)) for text in own_texts]
    before = BETWEEN if beside is not None and joins_pairs(tokenizer) else ""
    encoding = tokenizer(
        *([] if beside is None else [list(beside)]),
        [before + text for text, _ in spaced],
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_special_tokens_mask=True,
        return_offsets_mapping=True,
        verbose=False,
    )
    rows: dict[str, list[Any]] = {name: [] for name in names}
    for row, (_, spans) in enumerate(spaced):
        sequences = encoding.sequence_ids(row)
        own = np.flatnonzero([one == (beside is not None) for one in sequences])
        inputs = _inputs(sequences, own, limit)
        places = np.concatenate(inputs)
        for name in ("input_ids", "token_type_ids"):
            if name in rows:
                rows[name].append(np.array(encoding[name][row], dtype=np.int32)[places])
        offsets = np.array(encoding["offset_mapping"][row], dtype=np.int64).reshape(-1, 2)[own] - len(before)
        for name, values in zip(PLACES, _places(spans, offsets, own, inputs), strict=True):
            rows[name].append(np.tile(values, limit.lanes))
        rows[WINDOWS].append(list(map(len, inputs)))
        rows["length"].append(len(places))
    return rows


def _inputs(sequences: Sequence[int | None], own: np.ndarray, limit: TextLimit) -> list[np.ndarray]:
    """By window the tokens in it, in order.

    Args:
        sequences: the text that each token is of; None for special ones.
        own: the tokens of the text whose units have tags.
    """
    if len(sequences) <= limit.max_length:
        return [np.arange(len(sequences))]
    added = np.flatnonzero([one is None for one in sequences])
    others = np.setdiff1d(np.arange(len(sequences)), np.concatenate([added, own]))
    room = limit.max_length - len(added)
    return [np.sort(np.concatenate([added, *parts])) for parts in windows_of(own, [others], room, limit.stride)]


def _places(
    units: np.ndarray, offsets: np.ndarray, own: np.ndarray, inputs: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each ``(units,)`` int32: see ``PLACES``.

    Args:
        units: ``(units, 2)``, the characters of each.
        offsets: ``(own, 2)``, those of each of the text's tokens.
        own: ``(own,)``, which tokens are the text's.
        inputs: by window the tokens in it, in order.
    """
    if not len(own):
        return tuple(np.zeros(len(units), dtype=np.int32) for _ in PLACES)  # type: ignore[return-value]
    starts, ends = offsets.T
    first = np.minimum(np.searchsorted(ends, units[:, 0], side="right"), len(own) - 1)
    last = np.maximum(np.searchsorted(starts, units[:, 1], side="left") - 1, first)
    window = np.zeros(len(units), dtype=np.int64)
    shown = [np.flatnonzero(np.isin(own, one)) for one in inputs]
    spans = np.array([[one[0], one[-1]] for one in shown])
    if len(inputs) > 1:
        room = np.minimum(first[:, None] - spans[:, 0], spans[:, 1] - last[:, None])
        window = room.argmax(axis=1)
    shown_first = np.clip(first, spans[window, 0], spans[window, 1])
    shown_last = np.clip(last, spans[window, 0], spans[window, 1])
    column = [np.searchsorted(one, own) for one in inputs]
    of_first = [column[number][token] for number, token in zip(window, shown_first, strict=True)]
    of_last = [column[number][token] for number, token in zip(window, shown_last, strict=True)]
    return window.astype(np.int32), np.array(of_first, dtype=np.int32), np.array(of_last, dtype=np.int32)
