"""A tokenizer that gives what its backbone has no embedding of is told with the row, the token and what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from word_backbone import save_tokenizer

from tutti.data.encode import EncodedPart, encode_rows, load_tokenizer, part_of
from tutti.data.known_tokens import check_known, check_vocabulary
from tutti.errors import BackboneError
from tutti.records import TextLimit

TYPES = ["input_ids", "token_type_ids", "attention_mask"]


@pytest.fixture
def pairs(tmp_path: Path) -> EncodedPart:
    """Two pairs of texts, with tokens up to 5, which is a word of the second row, and types up to 1."""
    save_tokenizer(tmp_path, ["a", "zebra", "never"], model_input_names=TYPES)
    tokenizer = load_tokenizer(str(tmp_path))
    texts = pa.table({"text": ["a", "a zebra"], "text_b": ["a", "a"]})
    return part_of(
        np.array(["r0", "r1"]),
        encode_rows(texts, tokenizer=tokenizer, limit=TextLimit(16)),
        pad_token_id=tokenizer.pad_token_id,
    )


def test_a_token_that_no_row_uses_may_be_missing(pairs: EncodedPart, tmp_path: Path) -> None:
    for tokens, token_types in ((6, 2), (None, None)):
        check_known(pairs, where="test", backbone=str(tmp_path), tokens=tokens, token_types=token_types)


@pytest.mark.parametrize(
    ("tokens", "token_types", "sentence"),
    [
        (5, 2, r"give tokens below 5, .*; got 5 \('zebra'\), in row r1 of test; put back the tokenizer"),
        (
            6,
            1,
            r"give token types below 1, .*; got 1, in row r0 of test; .*take token_type_ids out of model_input_names",
        ),
        (0, 2, r"give tokens below 0, .*; got 0 \('\[PAD\]'\), which pads shorter rows"),
    ],
)
def test_a_row_with_one_beyond_the_table_is_named(pairs, tmp_path, tokens, token_types, sentence):
    with pytest.raises(BackboneError, match=sentence):
        check_known(pairs, where="test", backbone=str(tmp_path), tokens=tokens, token_types=token_types)


def test_pretraining_which_draws_any_token_needs_all_of_them(pairs: EncodedPart, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tmp_path))
    check_vocabulary(tokenizer, backbone=str(tmp_path), tokens=7)
    with pytest.raises(BackboneError, match=r"give tokens below 6, .*; got 6 \('never'\), which pretraining may put"):
        check_vocabulary(tokenizer, backbone=str(tmp_path), tokens=6)
