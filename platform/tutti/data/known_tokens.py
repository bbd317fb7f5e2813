"""Checks that a backbone's tables have a row for whatever its tokenizer gives, before it fails at one in training."""

from __future__ import annotations

from typing import Any

import numpy as np

from tutti.data.encode import EncodedPart, load_tokenizer
from tutti.errors import BackboneError, Fault

_PUT_BACK = "put back the tokenizer that it was trained with, or "
_RESIZE = f"{_PUT_BACK}resize its embeddings and train them"
_NO_TYPES = f"{_PUT_BACK}take token_type_ids out of model_input_names in its tokenizer_config.json"


def check_known(
    part: EncodedPart,
    *,
    where: str | None,
    backbone: str,
    tokens: int | None,
    token_types: int | None,
    remedy: str | None = None,
) -> None:
    """Checks every row of a part, and the token that pads it. What no row uses may be missing.

    Args:
        where: the part as messages name it, with the row; None if its ids are not those of the user's rows.
        backbone: folder or hub id, which has the tokenizer too.
        tokens: rows of the backbone's table of tokens; None if it takes any.
        token_types: rows of its table of token types; None if it takes any, or is given none.
        remedy: by default for a backbone that is still to be trained.

    Raises:
        BackboneError: naming what is unknown, and the first row that has it.
    """
    if tokens is not None and part.pad_token_id >= tokens:
        raise _unknown_token(backbone, tokens, part.pad_token_id, ", which pads shorter rows", remedy)
    if tokens is not None and (highest := part.highest("input_ids")) >= tokens:
        raise _unknown_token(backbone, tokens, highest, _place(part, "input_ids", highest, where), remedy)
    if token_types is not None and (highest := part.highest("token_type_ids")) >= token_types:
        rule = f"give token types below {token_types}, as many as the backbone has embeddings of"
        got = f"{highest}{_place(part, 'token_type_ids', highest, where)}"
        raise BackboneError(Fault(f"the tokenizer of {backbone}", rule, got, remedy or _NO_TYPES))


def check_vocabulary(tokenizer: Any, *, backbone: str, tokens: int | None) -> None:
    """Checks all tokens of a tokenizer, of which pretraining puts random ones into rows.

    Raises:
        BackboneError: if one is unknown.
    """
    highest = max(tokenizer.get_vocab().values())
    if tokens is not None and highest >= tokens:
        raise _unknown_token(backbone, tokens, highest, ", which pretraining may put into a row", None)


def _place(part: EncodedPart, column: str, value: int, where: str | None) -> str:
    if where is None:
        return ""
    rows = part.encoded.with_format("arrow")[:][column]
    row = next(row for row, values in enumerate(rows) if (np.asarray(values.values) == value).any())
    return f", in row {part.ids[row]} of {where}"


def _unknown_token(backbone: str, tokens: int, number: int, place: str, remedy: str | None) -> BackboneError:
    rule = f"give tokens below {tokens}, as many as the backbone has embeddings of"
    got = f"{number} ({load_tokenizer(backbone).convert_ids_to_tokens(number)!r}){place}"
    return BackboneError(Fault(f"the tokenizer of {backbone}", rule, got, remedy or _RESIZE))
