"""Texts as tokens: the columns of ``EncodedPart.encoded``, as lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tutti.data.choices import CANDIDATES, CHOICES, encoded_choices, encoded_letters, encoded_texts
from tutti.data.long_texts import WINDOWS, fitted
from tutti.data.special_tokens import BETWEEN, joins_pairs, separated
from tutti.data.token_units import PLACES, encoded_units
from tutti.records import TextLimit


def column_names(texts: Collection[str], tokenizer: Any, limit: TextLimit) -> list[str]:
    """The names of the columns that ``tokenized`` gives, ``length`` last.

    Args:
        texts: the names of the columns of texts.
    """
    names = ["input_ids", *(["token_type_ids"] if "token_type_ids" in tokenizer.model_input_names else [])]
    further: list[str] = []
    if limit.unit == "letters":
        further = [CANDIDATES]
    elif limit.truncation == "windows" or limit.unit or CHOICES in texts:
        further = [WINDOWS, *(PLACES if limit.unit not in ("", "text") else ())]
    return [*names, *further, "length"]


def tokenized(texts: Mapping[str, Sequence[str]], tokenizer: Any, limit: TextLimit) -> dict[str, list[Any]]:
    """The columns of ``column_names``: of each row a list of numbers, and its number of tokens.

    Args:
        texts: columns text, for pairs text_b, and where rows have candidates choices.
        tokenizer: from ``load_tokenizer``.
        limit: of a row's tokens. Too long pairs are truncated at the longer text.
    """
    names, cuts = column_names(texts, tokenizer, limit), limit.truncation == "longest_first"
    if CHOICES in texts or limit.unit:
        encoders = {"": encoded_choices, "letters": encoded_letters, "text": encoded_texts}
        by_parts = encoders.get(limit.unit, encoded_units)
        return by_parts(texts, tokenizer, limit, names=names)
    options: dict[str, Any] = {"truncation": "longest_first", "max_length": limit.max_length}
    if not cuts:
        options = {"truncation": False, "return_special_tokens_mask": True, "verbose": False}  # no word of long rows
    read = [name for name in ("text", "text_b") if name in texts][: 1 if limit.first_alone else 2]
    first, *second = (separated(list(texts[name]), tokenizer) for name in read)
    if second and joins_pairs(tokenizer):
        second = [[BETWEEN + text for text in second[0]]]
    encoding = tokenizer(first, *second, padding=False, return_attention_mask=False, **options)
    columns = {name: encoding[name] for name in names[:-1]} if cuts else fitted(encoding, names, limit)
    return {**columns, "length": list(map(len, columns["input_ids"]))}
