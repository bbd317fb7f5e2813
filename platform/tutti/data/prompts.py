"""Encodes prompts with the texts to be written after them, which end with the tokenizer's end of a text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tutti.errors import BackboneError, Fault, first_line
from tutti.records import TextLimit

if TYPE_CHECKING:
    from tutti.data.encode import EncodedPart

SOURCE = "source"  # the number of a row's tokens that are its prompt's
QUESTION_TOKENS = 2048  # of a question that is answered by the likeliest token: the QLoRA script's mmlu_source_max_len
_ANSWER_TOKENS = 8  # of an answer to a question, which is a letter, and the end of the text
SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), (SOURCE, pa.int32()), ("length", pa.int32())])


def encoded_prompts(
    texts: pa.Table, tokenizer: Any, limit: TextLimit, *, chat: bool, rows: int
) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows: the tokens of each prompt, and those of its target if the table has a column ``label``.

    A prompt keeps its first ``max_length`` tokens, or with ``truncation: tail`` its last ones; a target with its end
    the first ``target_max_len``.

    Args:
        texts: columns text and, where there are targets, label.
        chat: whether prompts are lists of messages in JSON.

    Raises:
        BackboneError: if the tokenizer has no end of a text, or for a chat no template.
    """
    begin, end = _begin(tokenizer), _end(tokenizer)
    for start in range(0, texts.num_rows, rows):
        part = texts.slice(start, rows)
        prompts = _chat_ids(part, tokenizer) if chat else _ids(part["text"].to_pylist(), tokenizer, begin)
        kept = slice(-limit.max_length, None) if limit.truncation == "tail" else slice(limit.max_length)
        sources = [(ids or [end])[kept] for ids in prompts]
        targets: list[list[int]] = [[] for _ in sources]
        if "label" in part.column_names:
            targets = [[*ids, end][: limit.target_max_len] for ids in _ids(part["label"].to_pylist(), tokenizer, [])]
        whole = [source + target for source, target in zip(sources, targets, strict=True)]
        columns = [pa.array(whole, pa.list_(pa.int32())), pa.array(list(map(len, sources)), pa.int32())]
        yield pa.record_batch([*columns, pa.array(list(map(len, whole)), pa.int32())], schema=SCHEMA)


def question_limit(limit: TextLimit, *, longest: int) -> TextLimit:
    """The limit of questions beside a task. They keep their end, the word after which the answer comes, and few-shot
    ones are far longer than the prompts of the task.

    Args:
        longest: the tokenizer's ``model_max_length``, which an answer has to fit in too.
    """
    tokens = min(QUESTION_TOKENS, longest - _ANSWER_TOKENS)
    return replace(limit, max_length=max(limit.max_length, tokens), truncation="tail")


def reach(part: EncodedPart, limit: TextLimit) -> dict[str, np.ndarray]:
    """Which prompts reach ``max_length``, and where a part has targets, which of them reach ``target_max_len``:
    ``(rows,)`` booleans by key.
    """
    sources = np.array(part.encoded.data.column(SOURCE))
    reached = {"max_length": sources >= limit.max_length}
    if part.labels is not None:
        reached["target_max_len"] = part.lengths - sources >= limit.target_max_len
    return reached


def prompt_key(tokenizer: Any, limit: TextLimit, *, chat: bool) -> str:
    """A key of what determines the tokens of prompts and targets, beside what determines those of other texts."""
    settings = [limit.target_max_len, tokenizer.chat_template if chat else None, _begin(tokenizer), _end(tokenizer)]
    return hashlib.sha256(json.dumps(settings, default=str).encode()).hexdigest()[:16]


def check_answers(part: EncodedPart, *, where: str) -> None:
    """Checks that the first token of an answer tells it, as questions are answered by the likeliest one.

    Raises:
        BackboneError: if two different answers begin with the same token.
    """
    assert part.targets is not None
    assert part.labels is not None
    ids, starts, _ = part.flat
    first = np.unique(ids[starts[:-1] + part.targets])
    if len(first) < len(answers := sorted(set(part.labels.tolist()))):
        rule = "have answers that begin with different tokens of the backbone, such as the letters A, B, C and D"
        got = f"{len(answers)} answers, such as {answers[0]!r}, that begin with {len(first)}"
        raise BackboneError(Fault(where, rule, got, "write the letters alone"))


def _ids(texts: list[str], tokenizer: Any, begin: list[int]) -> list[list[int]]:
    ids = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    return [[*begin, *own] for own in ids]


def _chat_ids(texts: pa.Table, tokenizer: Any) -> list[list[int]]:
    if not tokenizer.chat_template:
        rule, remedy = "have a chat template for messages", "name a backbone that was tuned on chats, or set one there"
        raise BackboneError(Fault(f"the tokenizer of {tokenizer.name_or_path}", rule, "none", remedy))
    try:
        return [
            list(tokenizer.apply_chat_template(json.loads(text), add_generation_prompt=True, return_dict=False))
            for text in texts["text"].to_pylist()
        ]
    except Exception as error:  # templates raise what they like, such as for roles that do not alternate
        rule, remedy = "be as the tokenizer's chat template asks", "correct the messages"
        raise BackboneError(Fault("the messages of a chat", rule, first_line(error), remedy)) from error


def _begin(tokenizer: Any) -> list[int]:
    """The token in front of a text, where the tokenizer has one."""
    first = next(iter(tokenizer("a")["input_ids"]), None)
    return [first] if first is not None and first in (tokenizer.bos_token_id, tokenizer.cls_token_id) else []


def _end(tokenizer: Any) -> int:
    for token in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if token is not None:
            return int(token)
    rule, remedy = "have an end of a text, to be learnt", "set eos_token in its tokenizer_config.json"
    raise BackboneError(Fault(f"the tokenizer of {tokenizer.name_or_path}", rule, "none", remedy))


def with_target_places(part: EncodedPart, *, from_start: bool = False) -> EncodedPart:
    """A part of prompts with ``targets``, and weights by the number of tokens that are learnt.

    Args:
        from_start: whether the tokens of the prompt, all but the first, are learnt too.
    """
    places = np.array(part.encoded.data.column(SOURCE)).astype(np.int64)
    places = np.minimum(places, 1) if from_start else places
    return replace(part, targets=places, weights=part.weights * (part.lengths - places).astype(np.float32))
