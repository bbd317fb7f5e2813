"""Keys of encoded texts: what determines the token ids of a row besides its texts."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from tutti.data.special_tokens import joins_pairs, separator
from tutti.files import sha256_of
from tutti.records import TextLimit


def encoding_key(tokenizer: Any, limit: TextLimit) -> str:
    """A key of everything besides the texts that determines the token ids.

    Compute it before using the tokenizer, since using it changes its state.
    """
    return table_key("", tokenizer, limit, state_of(tokenizer)) + ("-swapped" if limit.swap else "")


def table_key(texts_sha256: str, tokenizer: Any, limit: TextLimit, state: bytes) -> str:
    """The key of an encoded part: of its texts too.

    Args:
        state: of the tokenizer, as of ``state_of``.
    """
    names = [type(tokenizer).__name__, tokenizer.model_input_names, tokenizer.truncation_side, separator(tokenizer)]
    settings = [*names, limit.max_length, limit.truncation, limit.stride, joins_pairs(tokenizer)]
    settings += [limit.unit] * bool(limit.unit) + [limit.lanes] * (limit.lanes > 1)
    settings += ["first alone"] * limit.first_alone
    return hashlib.sha256(f"{texts_sha256}\n{json.dumps(settings)}\n".encode() + state).hexdigest()[:32]


def state_of(tokenizer: Any) -> bytes:
    """Everything that determines a tokenizer's output, apart from the settings that ``table_key`` adds."""
    if tokenizer.is_fast:
        return str(tokenizer.backend_tokenizer.to_str()).encode()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(file) for file in sorted(tokenizer.save_pretrained(folder)) if Path(file).is_file()]
        return "".join(f"{file.name}:{sha256_of(file)}\n" for file in files).encode()
