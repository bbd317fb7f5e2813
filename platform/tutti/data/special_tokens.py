"""Special tokens that tokenizers of decoders lack: one for padding, and one between the texts of a pair."""

from __future__ import annotations

import math
import re
from typing import Any

_SEPARATOR = "[SEP]"
BETWEEN = "\n"
"""The texts of a pair, for a tokenizer that has no separator, as those of decoders."""


def joins_pairs(tokenizer: Any) -> bool:
    """Whether the tokenizer sets the texts of a pair apart by no token of its own."""
    return not (tokenizer.sep_token or tokenizer.cls_token)


def padding_token(tokenizer: Any, backbone: str) -> str | None:
    """The tokenizer's token for padding, or the special one that takes its place; None if it has no special token.

    To tokenizers of some decoders, as Qwen's, transformers adds one for padding, of which the model may have no
    embedding. It counts as missing.

    Args:
        backbone: the folder or hub id that the tokenizer is from.
    """
    unknown = joins_pairs(tokenizer) and (tokenizer.pad_token_id or 0) >= _known_tokens(backbone)
    if tokenizer.pad_token is not None and not unknown:
        return str(tokenizer.pad_token)
    token = tokenizer.eos_token or next(iter(tokenizer.all_special_tokens), None)
    return None if token is None else str(token)


def _known_tokens(backbone: str) -> float:
    """The number of tokens that a backbone has embeddings of, by its config.json; infinite without one."""
    from transformers import AutoConfig  # slow to import

    try:
        return float(getattr(AutoConfig.from_pretrained(backbone, trust_remote_code=False), "vocab_size", math.inf))
    except (OSError, ValueError):
        return math.inf


def separator(tokenizer: Any) -> str:
    """What ``[SEP]`` in a text, as a template has it, is to the tokenizer."""
    return str(tokenizer.sep_token or tokenizer.eos_token or _SEPARATOR)


def separated(texts: list[str], tokenizer: Any) -> list[str]:
    """The texts with the tokenizer's separator token for ``[SEP]`` and the spaces before it, which would be a token."""
    own = separator(tokenizer)
    if own == _SEPARATOR:
        return texts
    pattern = re.compile(rf" *{re.escape(_SEPARATOR)}")
    return [pattern.sub(lambda _: own, text) if _SEPARATOR in text else text for text in texts]


def marks_second_text(tokenizer: Any) -> bool:
    """Whether the tokenizer gives the second text of a pair different token types."""
    return 1 in tokenizer("a", "b").get("token_type_ids", ())


def starts_special(tokenizer: Any) -> bool:
    """Whether encoded rows start with a special token, as BERT's do; XLNet's end with it."""
    first = next(iter(tokenizer("a")["input_ids"]), None)
    return first is not None and first in (tokenizer.cls_token_id, tokenizer.bos_token_id)
