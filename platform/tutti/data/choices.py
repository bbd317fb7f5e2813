"""Encodes rows of several inputs: candidates, of which the context alone is cut, and texts with values of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from tutti.data.long_texts import WINDOWS, cut, kept_of_first
from tutti.data.special_tokens import BETWEEN, joins_pairs, separated, separator
from tutti.errors import Fault, TaskFileError
from tutti.records import TextLimit
from tutti.tasks.kinds.choice import letters
from tutti.tasks.layouts.candidates import from_json

CHOICES = "choices"
CANDIDATES = "candidates"  # a column: of a prompt with all candidates of a row a list of their number
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
    contexts, questions, own = _parts(texts, tokenizer)
    seconds = [f"{question} {each}".strip() for question, row in zip(questions, own, strict=True) for each in row]
    firsts = [context for context, row in zip(contexts, own, strict=True) for _ in row]
    encoding, lengths = _with_contexts(firsts, seconds, tokenizer, limit, names)
    return _columns(encoding, lengths, list(map(len, own)), names)


def encoded_letters(
    texts: Mapping[str, Sequence[str]], tokenizer: Any, limit: TextLimit, *, names: Sequence[str]
) -> dict[str, list[Any]]:
    """The columns ``names`` of rows that are one prompt each, with ``CANDIDATES``: the context, the question, and all
    candidates with their letters, after which a letter comes next. The context is cut as by ``encoded_choices``.

    Args:
        texts: as of ``encoded_choices``.

    Raises:
        TaskFileError: where a question with its candidates leaves no room for the context.
    """
    contexts, questions, own = _parts(texts, tokenizer)
    seconds = []
    for question, row in zip(questions, own, strict=True):
        lettered = [f"{name}. {each}" for name, each in zip(letters(len(row)), row, strict=True)]
        seconds.append("\n".join([*([question] if question else []), *lettered, "Answer:"]))
    encoding, lengths = _with_contexts(contexts, seconds, tokenizer, limit, names, together=True)
    columns = {name: list(encoding[name]) for name in names if name not in (CANDIDATES, "length")}
    return {**columns, CANDIDATES: [[len(row)] for row in own], "length": lengths}


def _parts(texts: Mapping[str, Sequence[str]], tokenizer: Any) -> tuple[list[str], list[str], list[list[str]]]:
    """The context, the question and the candidates of each row."""
    own = from_json(texts[CHOICES])
    questions = separated(list(texts["text_b"]), tokenizer) if "text_b" in texts else [""] * len(own)
    return separated(list(texts["text"]), tokenizer), questions, own


def _with_contexts(
    firsts: list[str],
    seconds: list[str],
    tokenizer: Any,
    limit: TextLimit,
    names: Sequence[str],
    *,
    together: bool = False,
) -> tuple[Any, list[int]]:
    """Encoded pairs of which the first text alone is cut, and their lengths.

    Args:
        together: whether the second text has all candidates of a row.
    """
    follow = [BETWEEN + each for each in seconds] if joins_pairs(tokenizer) else seconds
    encoding = _whole(tokenizer, firsts, follow)
    lengths = list(map(len, encoding["input_ids"]))
    for number, length in enumerate(lengths):
        if length <= limit.max_length:
            continue
        places = kept_of_first(encoding, number, limit, second=_tokens(follow[number], tokenizer))
        if places is None:
            raise _too_long(seconds[number], limit, together=together)
        lengths[number] = _keep(encoding, number, places, names)
    return encoding, lengths


def encoded_texts(
    texts: Mapping[str, Sequence[str]], tokenizer: Any, limit: TextLimit, *, names: Sequence[str]
) -> dict[str, list[Any]]:
    """The columns ``names`` of rows: each row's texts as inputs of their own, one after another, with ``WINDOWS``.

    A text that is too long keeps its first tokens, or with ``head_tail`` its first and last ones. What stands before
    the first separator token, a prompt, loses tokens at its beginning before what follows it loses any.

    Args:
        texts: columns text and, where rows have two, text_b.
    """
    columns = [separated(list(texts[name]), tokenizer) for name in ("text", "text_b") if name in texts]
    encoding = _whole(tokenizer, [text for row in zip(*columns, strict=True) for text in row])
    lengths = list(map(len, encoding["input_ids"]))
    for number, length in enumerate(lengths):
        if length > limit.max_length:
            lengths[number] = _keep(encoding, number, _kept(encoding, number, limit, tokenizer), names)
    return _columns(encoding, lengths, [len(columns)] * len(texts["text"]), names)


def _kept(encoding: Any, number: int, limit: TextLimit, tokenizer: Any) -> np.ndarray:
    """The places of the tokens that a text too long keeps."""
    special = np.array(encoding["special_tokens_mask"][number], dtype=bool)
    own, room = np.flatnonzero(~special), limit.max_length - int(special.sum())
    between = tokenizer.convert_tokens_to_ids(separator(tokenizer))
    prompt = int((np.array(encoding["input_ids"][number])[own] == between).argmax())  # 0 without one
    own = own[min(prompt, len(own) - room) :]
    kept = cut(own, room, limit.truncation)
    return np.sort(np.concatenate([np.flatnonzero(special), kept]))


def _whole(tokenizer: Any, *texts: list[str]) -> Any:
    """Encoded inputs of which none is cut, with special_tokens_mask."""
    options = {"padding": False, "truncation": False, "return_attention_mask": False, "verbose": False}
    return tokenizer(*texts, return_special_tokens_mask=True, **options)


def _keep(encoding: Any, number: int, places: np.ndarray, names: Sequence[str]) -> int:
    """Keeps the tokens of an input at these places, and returns how many they are."""
    for name in names:
        if name not in (WINDOWS, CANDIDATES, "length"):
            encoding[name][number] = np.array(encoding[name][number], dtype=np.int32)[places]
    return len(places)


def _columns(
    encoding: Any, lengths: Sequence[int], counts: Sequence[int], names: Sequence[str]
) -> dict[str, list[Any]]:
    """The columns of rows of which each has so many of the inputs, in order."""
    ends = np.append(0, np.cumsum(counts, dtype=np.int64)).tolist()
    rows = list(pairwise(ends))
    columns: dict[str, list[Any]] = {
        name: [list(chain.from_iterable(encoding[name][start:end])) for start, end in rows]
        for name in names
        if name not in (WINDOWS, "length")
    }
    widths = [list(lengths[start:end]) for start, end in rows]
    return {**columns, WINDOWS: widths, "length": list(map(sum, widths))}


def _tokens(text: str, tokenizer: Any) -> int:
    return len(tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"])


def _too_long(second: str, limit: TextLimit, *, together: bool) -> TaskFileError:
    what = "the question with its candidates" if together else "the candidate"
    what += f" {second[:_SHOWN]!r}" + ("..." if len(second) > _SHOWN else "")
    rule = "fit" if together else "fit with its question"
    rule += f" into the {limit.max_length} tokens of max_length, beside a token of its context"
    return TaskFileError(Fault(what, rule, "more", "raise max_length, or shorten it"))
