"""Rows that have more tokens than a model reads at once: their ends, or windows of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_backbone import save_tokenizer

from tutti.data.batches import BatchPlan, TokenRows
from tutti.data.encode import EncodedPart, encode_rows, load_tokenizer, part_of, take
from tutti.data.encoding_key import encoding_key
from tutti.data.long_texts import inputs_of
from tutti.records import TextLimit

CLS, SEP, FIRST = 2, 3, 4  # [CLS], [SEP], and w0 in the tests' vocabulary


def words(*numbers: int) -> str:
    return " ".join(f"w{number}" for number in numbers)


def encoded(tokenizer_folder: str, *texts: list[str], **limit: Any) -> EncodedPart:
    table = pa.table(dict(zip(("text", "text_b"), texts, strict=False)))
    tokenizer = load_tokenizer(tokenizer_folder)
    rows = encode_rows(table, tokenizer=tokenizer, limit=TextLimit(**limit))
    return part_of(np.arange(len(texts[0])), rows, pad_token_id=0)


def numbers_of(tokens: list[int]) -> list[int | str]:
    """The numbers of words, and the names of special tokens."""
    return [{CLS: "[CLS]", SEP: "[SEP]"}.get(token, token - FIRST) for token in tokens]


def test_head_and_tail_of_a_long_text_stay_and_a_text_that_fits_stays_whole(tokenizer_folder: str) -> None:
    part = encoded(tokenizer_folder, [words(*range(20)), words(*range(7))], max_length=9, truncation="head_tail")
    first, second = part.encoded["input_ids"][:]
    assert numbers_of(first) == ["[CLS]", 0, 1, 2, 3, 17, 18, 19, "[SEP]"]
    assert numbers_of(second) == ["[CLS]", *range(7), "[SEP]"]
    assert part.windows is None


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        ("tail", [6, 7, 8, 9, "[SEP]", 50, 51, 52]),
        ("only_first", [0, 1, 2, 3, "[SEP]", 50, 51, 52]),
        ("only_second", [*range(7), "[SEP]"]),
    ],
)
def test_a_pair_keeps_its_last_tokens_or_loses_those_of_one_text_alone(tokenizer_folder, truncation, kept):
    texts = [words(*range(10))], [words(50, 51, 52)]
    part = encoded(tokenizer_folder, *texts, max_length=10, truncation=truncation)
    assert numbers_of(part.encoded["input_ids"][0]) == ["[CLS]", *kept, "[SEP]"]
    longer = encoded(tokenizer_folder, [words(1)], [words(*range(50, 70))], max_length=10, truncation=truncation)
    assert len(longer.encoded["input_ids"][0]) == 10


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (10, 3, [0, 1, 8, 9, "[SEP]", 50, 51, 52]),  # the longer one gives way
        (2, 10, [0, 1, "[SEP]", 50, 51, 52, 58, 59]),
        (10, 10, [0, 1, 9, "[SEP]", 50, 51, 58, 59]),
    ],
)
def test_each_text_of_a_pair_keeps_its_ends_as_many_tokens_as_truncation_would(tokenizer_folder, first, second, kept):
    texts = [words(*range(first))], [words(*range(50, 50 + second))]
    part = encoded(tokenizer_folder, *texts, max_length=10, truncation="head_tail")
    assert numbers_of(part.encoded["input_ids"][0]) == ["[CLS]", *kept, "[SEP]"]
    cut = encoded(tokenizer_folder, *texts, max_length=10)
    assert part.encoded["token_type_ids"][0] == cut.encoded["token_type_ids"][0]


def windows_of(part: EncodedPart) -> list[list[int | str]]:
    ids, starts, _ = part.flat
    return [numbers_of(ids[start:end].tolist()) for start, end in pairwise(starts)]


def test_windows_of_a_row_overlap_by_the_stride_at_least_and_are_all_full(tokenizer_folder: str) -> None:
    part = encoded(tokenizer_folder, [words(*range(11)), words(1)], max_length=8, truncation="windows", stride=2)
    assert windows_of(part) == [
        ["[CLS]", 0, 1, 2, 3, 4, 5, "[SEP]"],
        ["[CLS]", 2, 3, 4, 5, 6, 7, "[SEP]"],
        ["[CLS]", 5, 6, 7, 8, 9, 10, "[SEP]"],
        ["[CLS]", 1, "[SEP]"],
    ]
    assert part.windows is not None
    assert part.windows.tolist() == [3, 1]
    assert part.lengths.tolist() == [24, 3]


def test_windows_of_a_pair_slide_over_its_longer_text_beside_the_shorter_one(tokenizer_folder: str) -> None:
    texts = [words(50, 51)], [words(*range(8))]
    part = encoded(tokenizer_folder, *texts, max_length=10, truncation="windows", stride=1)
    assert windows_of(part) == [
        ["[CLS]", 50, 51, "[SEP]", 0, 1, 2, 3, 4, "[SEP]"],
        ["[CLS]", 50, 51, "[SEP]", 3, 4, 5, 6, 7, "[SEP]"],
    ]
    _, _, types = part.flat
    assert types is not None
    assert types.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1] * 2


@given(
    lengths=st.tuples(st.integers(0, 60), st.integers(0, 60)) | st.tuples(st.integers(1, 120)),
    max_length=st.integers(8, 40),
    stride=st.integers(0, 40),
)
def test_windows_cover_all_of_the_longer_text_and_each_is_full(lengths, max_length, stride):
    special = np.concatenate([[True], *([*[False] * length, True] for length in lengths)]).astype(bool)
    if len(special) <= max_length:
        return
    windows = inputs_of(special, TextLimit(max_length, "windows", stride))
    assert {len(window) for window in windows} == {max_length}
    assert all((np.diff(window) > 0).all() for window in windows)
    assert all(set(np.flatnonzero(special)) <= set(window) for window in windows)
    texts = np.split(np.arange(len(special)), np.flatnonzero(special))
    longer = sorted((text[1:] for text in texts if len(text)), key=len)[-1]
    assert set(longer) <= set(np.concatenate(windows))
    room = max_length - int(special.sum())
    shared = [len(np.intersect1d(np.intersect1d(a, b), longer)) for a, b in pairwise(windows)]
    own = len(np.intersect1d(windows[0], longer))
    assert all(common >= min(stride, own // 2) for common in shared)
    assert own >= room // 2


@pytest.mark.parametrize("truncation", ["head_tail", "windows"])
def test_rows_that_fit_are_encoded_as_they_are_where_texts_are_cut(tokenizer_folder: str, truncation: str) -> None:
    texts = [words(*range(number)) for number in range(7)], [words(*range(number % 4)) for number in range(7)]
    part = encoded(tokenizer_folder, *texts, max_length=16, truncation=truncation)
    cut = encoded(tokenizer_folder, *texts, max_length=16)
    assert all(part.encoded[name][:] == cut.encoded[name][:] for name in cut.encoded.column_names)
    assert part.windows is None
    batch, other = (TokenRows(each).pad(np.arange(7)) for each in (part, cut))
    assert batch.keys() == other.keys()
    assert all((batch[name] == other[name]).all() for name in batch)


def test_a_batch_holds_all_windows_of_its_rows_and_says_whose_they_are(tokenizer_folder: str) -> None:
    texts = [words(1), words(*range(11)), words(2, 3), words(*range(30, 38))]
    part = encoded(tokenizer_folder, texts, max_length=8, truncation="windows", stride=2)
    batch = TokenRows(part, multiple=8).pad(np.array([3, 0, 1]))
    assert batch["windows"].tolist() == [2, 1, 3]
    first_words = [numbers_of(row.tolist())[1] for row in batch["input_ids"]]
    assert first_words == [30, 32, 1, 0, 2, 5]
    assert batch["input_ids"].shape == (6, 8)
    alone = TokenRows(part).pad(np.array([2, 0]))
    assert "windows" not in alone
    assert alone["input_ids"].shape == (2, 4)
    chosen = take(part, np.array([3, 0]))
    assert TokenRows(chosen).pad(np.array([1, 0]))["windows"].tolist() == [1, 2]


@pytest.mark.parametrize("apart", [False, True])
@settings(max_examples=25)
@given(
    rows=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=12),
    multiple=st.sampled_from([1, 8]),
    max_tokens=st.integers(40, 400),
)
def test_a_token_budget_counts_every_window_and_its_padding(tokenizer_folder, apart, rows, multiple, max_tokens):
    texts = [[words(*range(count)) for count in column] for column in zip(*rows, strict=True)]
    part = encoded(tokenizer_folder, *texts, max_length=13, truncation="windows", stride=2)
    lengths = part.batch_lengths(apart=apart, multiple=multiple)
    plan = BatchPlan(per_device_batch=1, max_tokens=max_tokens, group_by_length=True, multiple=multiple)
    order, boundaries = np.argsort(lengths, kind="stable"), plan.boundaries(lengths, 1)
    tokens = TokenRows(part, multiple=multiple)
    for start, end in pairwise(boundaries):
        batch = tokens.pad(order[start:end])
        size = batch["input_ids"].numel()
        if apart:
            second, mask = batch["token_type_ids"] == 1, batch["attention_mask"] == 1
            widths = [second.sum(dim=1).max() + 1, (mask & ~second).sum(dim=1).max()]
            size = 2 * len(mask) * int(max(widths))
        assert size <= max_tokens or end - start == 1


def test_what_becomes_of_long_texts_is_part_of_the_encoding(tokenizer_folder: str) -> None:
    limits = [TextLimit(16), TextLimit(16, "head_tail"), TextLimit(16, "windows", 4), TextLimit(16, "windows", 5)]
    assert len({encoding_key(load_tokenizer(tokenizer_folder), limit) for limit in limits}) == 4


@pytest.fixture
def roberta(tmp_path: Path) -> str:
    """A tokenizer whose separator is not BERT's, and a word [SEP] to none."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    save_tokenizer(tmp_path / "bert", ["a", "b"])
    tokenizer = Tokenizer.from_str(
        (tmp_path / "bert" / "tokenizer.json").read_text().replace("[SEP]", "</s>").replace("[CLS]", "<s>")
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "<s>", "sep_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(tmp_path / "roberta")
    return str(tmp_path / "roberta")


@pytest.mark.parametrize("text", ["a [SEP] b", "a[SEP]b", "a </s> b"])
def test_sep_in_a_text_is_the_separator_of_the_tokenizer_and_its_own_tokens_stay(roberta: str, text: str) -> None:
    assert encoded(roberta, [text], max_length=8).encoded["input_ids"][0] == [CLS, FIRST, SEP, FIRST + 1, SEP]


def test_sep_in_a_text_is_the_separator_of_bert_too(tokenizer_folder: str) -> None:
    tokens = encoded(tokenizer_folder, ["w1 [SEP] w2"], max_length=8).encoded["input_ids"][0]
    assert numbers_of(tokens) == ["[CLS]", 1, "[SEP]", 2, "[SEP]"]
