"""Encodes rows with candidates: one input for each, of which the context alone is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from tutti.data.long_texts import WINDOWS, kept_of_first
from tutti.data.special_tokens import BETWEEN, joins_pairs, separated
from tutti.errors import Fault, TaskFileError
from tutti.records import TextLimit
from tutti.tasks.layouts.candidates import from_json

CHOICES = "choices"
_SHOWN = 60  # characters of a candidate in a message


def encoded_choices(
    texts: Mapping[str, Sequence[str]], tokenizer: Any, limit: TextLimit, *, names: Sequence[str]
) -> dict[str, list[Any]]:
    """The columns ``names`` of rows: the inputs of each row's candidates one after another, with ``WINDOWS``.

    An input is the pair of the row's text, its context, and its second text, the question, with a candidate. Where it
    is too long, the context keeps its first tokens, or with ``head_tail`` its first and last ones.

    Args:
        texts: columns text, choices and, where there is a question, text_b.

    Raises:
        TaskFileError: where a question with a candidate leaves no room for the context.
    """
    own = from_json(texts[CHOICES])
    contexts = separated(list(texts["text"]), tokenizer)
    questions = separated(list(texts["text_b"]), tokenizer) if "text_b" in texts else [""] * len(own)
    seconds = [f"{question} {each}".strip() for question, row in zip(questions, own, strict=True) for each in row]
    firsts = [context for context, row in zip(contexts, own, strict=True) for _ in row]
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
    of_inputs = [name for name in names if name not in (WINDOWS, "length")]
    lengths = list(map(len, encoding["input_ids"]))
    for number, length in enumerate(lengths):
        if length <= limit.max_length:
            continue
        places = kept_of_first(encoding, number, limit, second=_tokens(follow[number], tokenizer))
        if places is None:
            raise _too_long(seconds[number], limit)
        for name in of_inputs:
            encoding[name][number] = np.array(encoding[name][number], dtype=np.int32)[places]
        lengths[number] = len(places)
    ends = np.append(0, np.cumsum(list(map(len, own)), dtype=np.int64)).tolist()
    rows = list(pairwise(ends))
    columns: dict[str, list[Any]] = {
        name: [list(chain.from_iterable(encoding[name][start:end])) for start, end in rows] for name in of_inputs
    }
    widths = [lengths[start:end] for start, end in rows]
    return {**columns, WINDOWS: widths, "length": list(map(sum, widths))}


def _tokens(text: str, tokenizer: Any) -> int:
    return len(tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"])


def _too_long(second: str, limit: TextLimit) -> TaskFileError:
    what = f"the candidate {second[:_SHOWN]!r}" + ("..." if len(second) > _SHOWN else "")
    rule = f"fit with its question into the {limit.max_length} tokens of max_length, beside a token of its context"
    return TaskFileError(Fault(what, rule, "more", "raise max_length, or shorten it"))
