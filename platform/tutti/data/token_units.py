"""Where the units of a row, its words or characters, are among its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tutti.data.long_texts import WINDOWS, inputs_of
from tutti.errors import BackboneError, Fault
from tutti.records import TextLimit
from tutti.tasks.units import spans_of

PLACES = ("unit_window", "unit_first", "unit_last")
"""Columns of lists: for each unit its window, and there the places of its first and its last token."""

_OVERLAP = 4  # windows have at least one in so many tokens in common, where the study does not say how many


def encoded_units(
    texts: pa.Table, tokenizer: Any, limit: TextLimit, *, schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    """Blocks of so many rows ``with_units``, of the column text."""
    for start in range(0, texts.num_rows, rows):
        yield with_units(texts["text"].slice(start, rows).to_pylist(), tokenizer, limit, schema)


def with_units(texts: Sequence[str], tokenizer: Any, limit: TextLimit, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``EncodedPart.encoded`` for texts, with those of ``PLACES``. No token is cut away: a long row is
    read in windows, and each unit in the one where it has most of the text on both sides.

    A unit that the tokenizer drops, such as a sign without a width, has the place of the token that follows it.

    Raises:
        BackboneError: where the tokenizer does not tell which characters a token is of.
    """
    if not tokenizer.is_fast:
        rule = "be a fast one for tasks of words with tags, which tells the characters of each token"
        raise BackboneError(
            Fault("the tokenizer of the backbone", rule, type(tokenizer).__name__, "name another backbone")
        )
    limit = replace(limit, long_texts="windows", stride=limit.stride or limit.max_length // _OVERLAP)
    encoding = tokenizer(
        list(texts),
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_special_tokens_mask=True,
        return_offsets_mapping=True,
        verbose=False,
    )
    rows: dict[str, list[Any]] = {name: [] for name in schema.names}
    for row, text in enumerate(texts):
        special = np.array(encoding["special_tokens_mask"][row], dtype=bool)
        inputs = [np.arange(len(special))] if len(special) <= limit.max_length else inputs_of(special, limit)
        places = np.concatenate(inputs)
        for name in ("input_ids", "token_type_ids"):
            if name in rows:
                rows[name].append(np.array(encoding[name][row], dtype=np.int32)[places])
        offsets = np.array(encoding["offset_mapping"][row], dtype=np.int64).reshape(-1, 2)
        for name, values in zip(PLACES, _places(spans_of(text, limit.unit), offsets, special, inputs), strict=True):
            rows[name].append(values)
        rows[WINDOWS].append(list(map(len, inputs)))
        rows["length"].append(len(places))
    return pa.record_batch([pa.array(rows[field.name], field.type) for field in schema], schema=schema)


def _places(
    units: np.ndarray, offsets: np.ndarray, special: np.ndarray, inputs: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each ``(units,)`` int32: see ``PLACES``.

    Args:
        units: ``(units, 2)``, the characters of each.
        offsets: ``(tokens, 2)``, those of each token.
        special: ``(tokens,)`` bool, tokens that are of no characters.
        inputs: by window the tokens in it, in order.
    """
    own = np.flatnonzero(~special)
    if not len(own):
        return tuple(np.zeros(len(units), dtype=np.int32) for _ in PLACES)  # type: ignore[return-value]
    starts, ends = offsets[own, 0], offsets[own, 1]
    first = np.minimum(np.searchsorted(ends, units[:, 0], side="right"), len(own) - 1)
    last = np.maximum(np.searchsorted(starts, units[:, 1], side="left") - 1, first)
    window = np.zeros(len(units), dtype=np.int64)
    spans = np.searchsorted(own, [[one[~special[one]][0], one[~special[one]][-1]] for one in inputs])
    if len(inputs) > 1:
        room = np.minimum(first[:, None] - spans[:, 0], spans[:, 1] - last[:, None])
        window = room.argmax(axis=1)
    shown_first = np.clip(first, spans[window, 0], spans[window, 1])
    shown_last = np.clip(last, spans[window, 0], spans[window, 1])
    column = [np.searchsorted(one, own) for one in inputs]
    of_first = [column[number][token] for number, token in zip(window, shown_first, strict=True)]
    of_last = [column[number][token] for number, token in zip(window, shown_last, strict=True)]
    return window.astype(np.int32), np.array(of_first, dtype=np.int32), np.array(of_last, dtype=np.int32)
