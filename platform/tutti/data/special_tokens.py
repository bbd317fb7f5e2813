"""Special tokens that tokenizers of decoders lack: one for padding, and one between the texts of a pair."""

from __future__ import annotations

import math
from typing import Any


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
