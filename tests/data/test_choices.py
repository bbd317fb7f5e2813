"""Rows with candidates: an input for each, of which the context alone is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_backbone import save_decoder

from tutti.data.batches import BatchPlan, TokenRows
from tutti.data.distinct import distinct_rows
from tutti.data.encode import EncodedPart, encode_rows, load_tokenizer, part_of
from tutti.data.packing import Packing
from tutti.errors import TaskFileError
from tutti.records import TextLimit

CLS, SEP, FIRST = 2, 3, 4  # [CLS], [SEP], and w0 in the tests' vocabulary


def words(*numbers: int) -> str:
    return " ".join(f"w{number}" for number in numbers)


def encoded(
    tokenizer_folder: str, texts: list[str], choices: list[list[str]], questions: list[str] | None = None, **limit: Any
) -> EncodedPart:
    columns = {"text": texts, "choices": [json.dumps(own) for own in choices]}
    table = pa.table(columns | ({} if questions is None else {"text_b": questions}))
    rows = encode_rows(table, tokenizer=load_tokenizer(tokenizer_folder), limit=TextLimit(**limit))
    return part_of(np.arange(len(texts)), rows, pad_token_id=0)


def inputs_of(part: EncodedPart) -> list[list[int | str]]:
    """The numbers of words, and the names of special tokens, of each input."""
    ids, starts, _ = part.flat
    rows = [ids[start:end].tolist() for start, end in pairwise(starts)]
    return [[{CLS: "[CLS]", SEP: "[SEP]"}.get(token, token - FIRST) for token in row] for row in rows]


def test_each_candidate_is_an_input_behind_the_context_and_the_question(tokenizer_folder: str) -> None:
    part = encoded(
        tokenizer_folder, [words(1, 2), words(3)], [["w7", "w8 w9"], ["w7", "w8", "w9"]], ["w5", "w6"], max_length=16
    )
    first, second = ["[CLS]", 1, 2, "[SEP]", 5], ["[CLS]", 3, "[SEP]", 6]
    endings = [(first, [7]), (first, [8, 9]), (second, [7]), (second, [8]), (second, [9])]
    assert inputs_of(part) == [[*start, *own, "[SEP]"] for start, own in endings]
    assert part.windows is not None
    assert part.windows.tolist() == [2, 3]
    assert part.lengths.tolist() == [15, 18]
    assert part.widths.tolist() == [8, 6]
    batch = TokenRows(part).pad(np.array([1, 0]))
    assert batch["windows"].tolist() == [3, 2]
    assert batch["token_type_ids"][0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("truncation", "kept"), [("longest_first", [0, 1, 2, 3]), ("head_tail", [0, 1, 8, 9]), ("windows", [0, 1, 2, 3])]
)
def test_of_a_long_input_the_context_alone_is_cut(tokenizer_folder: str, truncation: str, kept: list[int]) -> None:
    own = [["w20 w21 w22", "w23"]]
    part = encoded(tokenizer_folder, [words(*range(10))], own, ["w30"], max_length=11, truncation=truncation)
    long, short = inputs_of(part)
    assert long == ["[CLS]", *kept, "[SEP]", 30, 20, 21, 22, "[SEP]"]
    assert short[-4:] == ["[SEP]", 30, 23, "[SEP]"]
    assert len(short) == 11


def test_a_candidate_without_room_for_its_context_is_an_error(tokenizer_folder: str) -> None:
    with pytest.raises(TaskFileError, match="the candidate 'w3 w4 w5 w6' must fit with its question into the 7 tokens"):
        encoded(tokenizer_folder, [words(1, 2, 3)], [["w3 w4 w5 w6", "w7"]], max_length=7)


LETTERED = ("A.", "B.", "C.", "Answer:")


@pytest.fixture(scope="module")
def decoder_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("decoder")
    save_decoder(folder, further=LETTERED)
    return str(folder)


def test_letters_are_in_one_prompt_of_which_the_context_alone_is_cut(decoder_tokenizer: str) -> None:
    rows = [words(*range(10)), words(3)], [["w20 w21", "w22"], ["w7", "w8", "w9"]], ["w30", "w31"]
    part = encoded(decoder_tokenizer, *rows, max_length=11, truncation="head_tail", unit="letters")
    read = load_tokenizer(decoder_tokenizer).convert_ids_to_tokens
    prompts = [" ".join(read(part.flat[0][start:end])) for start, end in pairwise(part.flat[1])]
    assert prompts == ["<s> w0 w1 w9 w30 A. w20 w21 B. w22 Answer:", "<s> w3 w31 A. w7 B. w8 C. w9 Answer:"]
    assert part.windows is None
    assert part.candidates is not None
    assert part.candidates.tolist() == [2, 3]
    rows = TokenRows(part)
    assert rows.pad(np.array([1, 0]))["candidates"].tolist() == [3, 2]
    packing = Packing.of(part.lengths, rows=4, max_tokens=None)
    assert rows.pack(np.array([1]), packing)["candidates"].tolist() == [3] + [1] * (packing.rows - 1)


def test_a_prompt_without_room_for_its_context_is_an_error(decoder_tokenizer: str) -> None:
    message = r"the question with its candidates 'A. w3\\nB. w4\\nAnswer:' must fit into the 6 tokens"
    with pytest.raises(TaskFileError, match=message):
        encoded(decoder_tokenizer, [words(1, 2, 3)], [["w3", "w4"]], max_length=6, unit="letters")


@settings(max_examples=25)
@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5)), min_size=1, max_size=12),
    multiple=st.sampled_from([1, 8]),
    max_tokens=st.integers(40, 400),
)
def test_a_token_budget_counts_every_candidate_and_its_padding(tokenizer_folder, rows, multiple, max_tokens):
    choices = [[f"w{place}" for place in range(count)] for _, count in rows]
    part = encoded(tokenizer_folder, [words(*range(length)) for length, _ in rows], choices, max_length=24)
    lengths = part.batch_lengths(apart=False, multiple=multiple)
    plan = BatchPlan(per_device_batch=1, max_tokens=max_tokens, group_by_length=True, multiple=multiple)
    order, boundaries = np.argsort(lengths, kind="stable"), plan.boundaries(lengths, 1)
    for start, end in pairwise(boundaries):
        size = TokenRows(part, multiple=multiple).pad(order[start:end])["input_ids"].numel()
        assert size <= max_tokens or end - start == 1


def test_pretraining_reads_one_candidate_of_each_row_and_every_context_once(tokenizer_folder: str) -> None:
    own = ["w7", "w8 w9"]
    part = encoded(tokenizer_folder, [words(1, 2), words(3), words(3)], [own, own, own[::-1]], max_length=16)
    rows = distinct_rows([part])
    assert rows["input_ids"][:] == [[2, 5, 6, 3, 11, 3], [2, 7, 3, 12, 13, 3]]
    assert rows["token_type_ids"][:] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]]
    assert rows["length"][:] == [6, 6]
