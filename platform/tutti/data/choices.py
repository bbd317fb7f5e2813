"""Encodes rows of several inputs: candidates, of which the context alone is cut, and texts with values of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tutti.data.long_texts import cut, kept_of_first
from tutti.data.special_tokens import BETWEEN, joins_pairs, separated, separator
from tutti.errors import Fault, TaskFileError
from tutti.records import TextLimit
from tutti.tasks.layouts.candidates import from_json

CHOICES = "choices"
_SHOWN = 60  # characters of a candidate in a message


def encoded_choices(
    texts: pa.Table, tokenizer: Any, limit: TextLimit, *, schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows: the inputs of each row's candidates one after another, with ``WINDOWS``.

    An input is the pair of the row's text, its context, and its second text, the question, with a candidate. Where it
    is too long, the context keeps its first tokens, or with ``head_tail`` its first and last ones.

    Args:
        texts: columns text, choices and, where there is a question, text_b.

    Raises:
        TaskFileError: where a question with a candidate leaves no room for the context.
    """
    for start in range(0, texts.num_rows, rows):
        part = texts.slice(start, rows)
        own = from_json(part[CHOICES].to_pylist())
        counts = np.array(list(map(len, own)), dtype=np.int64)
        contexts = separated(part["text"].to_pylist(), tokenizer)
        questions = (
            separated(part["text_b"].to_pylist(), tokenizer) if "text_b" in part.column_names else [""] * len(own)
        )
        seconds = [f"{question} {each}".strip() for question, row in zip(questions, own, strict=True) for each in row]
        firsts = [context for context, count in zip(contexts, counts, strict=True) for _ in range(count)]
        follow = [BETWEEN + each for each in seconds] if joins_pairs(tokenizer) else seconds
        encoding = tokenizer(
            firsts,
            follow,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_special_tokens_mask=True,
            verbose=False,
        )
        lengths = np.array(list(map(len, encoding["input_ids"])))
        for number in np.flatnonzero(lengths > limit.max_length):
            places = kept_of_first(encoding, int(number), limit, second=_tokens(follow[number], tokenizer))
            if places is None:
                raise _too_long(seconds[number], limit)
            for name in schema.names[:-2]:
                encoding[name][number] = np.array(encoding[name][number], dtype=np.int32)[places]
            lengths[number] = len(places)
        yield _batch(encoding, lengths, counts, schema)


def encoded_texts(
    texts: pa.Table, tokenizer: Any, limit: TextLimit, *, schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows: each row's texts as inputs of their own, one after another, with ``WINDOWS``.

    A text that is too long keeps its first tokens, or with ``head_tail`` its first and last ones. What stands before
    the first separator token, a prompt, loses tokens at its beginning before what follows it loses any.

    Args:
        texts: columns text and, where rows have two, text_b.
    """
    names = [name for name in ("text", "text_b") if name in texts.column_names]
    for start in range(0, texts.num_rows, rows):
        part = texts.slice(start, rows)
        columns = [separated(part[name].to_pylist(), tokenizer) for name in names]
        flat = [text for row in zip(*columns, strict=True) for text in row]
        encoding = tokenizer(
            flat,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_special_tokens_mask=True,
            verbose=False,
        )
        lengths = np.array(list(map(len, encoding["input_ids"])))
        for number in np.flatnonzero(lengths > limit.max_length):
            places = _kept(encoding, int(number), limit, tokenizer)
            for name in schema.names[:-2]:
                encoding[name][number] = np.array(encoding[name][number], dtype=np.int32)[places]
            lengths[number] = len(places)
        yield _batch(encoding, lengths, np.full(part.num_rows, len(names)), schema)


def _kept(encoding: Any, number: int, limit: TextLimit, tokenizer: Any) -> np.ndarray:
    """The places of the tokens that a text too long keeps."""
    special = np.array(encoding["special_tokens_mask"][number], dtype=bool)
    own, room = np.flatnonzero(~special), limit.max_length - int(special.sum())
    between = tokenizer.convert_tokens_to_ids(separator(tokenizer))
    prompt = int((np.array(encoding["input_ids"][number])[own] == between).argmax())  # 0 without one
    own = own[min(prompt, len(own) - room) :]
    kept = cut(own, room, limit.long_texts)
    return np.sort(np.concatenate([np.flatnonzero(special), kept]))


def _batch(encoding: Any, lengths: np.ndarray, counts: np.ndarray, schema: pa.Schema) -> pa.RecordBatch:
    ends = np.append(0, lengths.cumsum())[np.append(0, counts.cumsum())]
    columns = [_lists(np.concatenate([*encoding[name], []]), ends) for name in schema.names[:-2]]
    columns += [_lists(lengths, np.append(0, counts.cumsum())), pa.array(np.diff(ends), pa.int32())]
    return pa.record_batch(columns, schema=schema)


def _lists(values: np.ndarray, ends: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values.astype(np.int32)))


def _tokens(text: str, tokenizer: Any) -> int:
    return len(tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"])


def _too_long(second: str, limit: TextLimit) -> TaskFileError:
    what = f"the candidate {second[:_SHOWN]!r}" + ("..." if len(second) > _SHOWN else "")
    rule = f"fit with its question into the {limit.max_length} tokens of max_length, beside a token of its context"
    return TaskFileError(Fault(what, rule, "more", "raise max_length, or shorten it"))
