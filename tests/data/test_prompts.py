"""Prompts are encoded with the texts to be written after them, which end with the end of a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from word_backbone import save_decoder

from tutti.data.encode import EncodedPart, load_parts, load_tokenizer
from tutti.data.prepare import prepare
from tutti.data.prompts import check_answers, encoded_prompts, prompt_key, question_limit, reach
from tutti.errors import BackboneError
from tutti.records import TextLimit
from tutti.tasks.build import TaskSpec
from tutti.tasks.layouts.instructions import Instructions
from tutti.tasks.task import Generation

BEGIN, END, FIRST = 1, 2, 4  # <s>, </s>, and w0
TEMPLATE = "{% for one in messages %}{{ one.role + ' ' + one.content + ' ' }}{% endfor %}{{ 'w59' }}"


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    save_decoder(tmp_path / "decoder")
    return str(tmp_path / "decoder")


@pytest.fixture
def encoded(decoder: str, tmp_path: Path) -> Callable[..., dict[str, EncodedPart]]:
    """Makes the parts of a task whose prompt n has n words, and whose target n + 1."""

    def make(*, questions: bool = False, **limit: Any) -> dict[str, EncodedPart]:
        rows = [{"input": " ".join(["w5"] * n), "output": " ".join(["w7"] * (n + 1))} for n in range(1, 13)]
        letters = [{"input": f"{'w5 ' * 90}w6", "output": f"w{7 + n % 2}"} for n in range(4)]
        for name, written in (("train", rows), ("test", rows), ("mmlu", letters)):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
        layout = Instructions()
        spec = TaskSpec(
            name="A",
            layout=layout,
            extra_layout=layout,
            sources={name: str(tmp_path / f"{name}.jsonl") for name in ("train", "test")},
            pair=False,
            kind_name="text",
            metric="perplexity",
            submission="csv",
            generation=Generation(report_sets={"mmlu": "end"} if questions else {}),
            report_sets={"mmlu": (str(tmp_path / "mmlu.jsonl"), layout)} if questions else {},
        )
        prepared = prepare([spec], validation=0.25, seed=0, folder=tmp_path / "data")
        return load_parts(
            prepared, tokenizer=decoder, limit=TextLimit(**{"max_length": 64, **limit}), cache=tmp_path / "cache"
        )["A"]

    return make


def words(part: EncodedPart) -> list[int]:
    """The number of words of each row's prompt."""
    return [len(text.split()) - 1 for text in part.labels]


def test_a_row_is_the_prompt_then_the_target_with_its_end(encoded: Callable[..., dict[str, EncodedPart]]) -> None:
    parts = encoded()
    for name in ("train", "validation"):
        rows = parts[name].encoded["input_ids"][:]
        assert rows == [[BEGIN, *[FIRST + 5] * n, *[FIRST + 7] * (n + 1), END] for n in words(parts[name])]
    train = parts["train"]
    assert train.targets.tolist() == [1 + n for n in words(train)]
    assert train.weights.tolist() == [n + 2 for n in words(train)]  # as many tokens are learnt
    assert train.lengths.tolist() == [2 * n + 3 for n in words(train)]


def test_rows_to_predict_are_prompts_alone(encoded: Callable[..., dict[str, EncodedPart]]) -> None:
    test = encoded()["test"]
    assert test.labels is None
    assert test.encoded["input_ids"][:] == [[BEGIN, *[FIRST + 5] * n] for n in range(1, 13)]


def test_a_prompt_and_a_target_are_cut_at_a_length_of_each(encoded: Callable[..., dict[str, EncodedPart]]) -> None:
    train = encoded(max_length=4, target_max_len=3)["train"]
    for row, n in zip(train.encoded["input_ids"], words(train), strict=True):
        prompt, target = [BEGIN, *[FIRST + 5] * n][:4], [*[FIRST + 7] * (n + 1), END][:3]
        assert row == [*prompt, *target]
    again = encoded(max_length=4, target_max_len=2)["train"]  # not what the cache has of other lengths
    assert again.lengths.tolist() == (train.lengths - 1).tolist()


def test_questions_beside_a_task_are_read_to_their_end_whatever_its_prompts_are_cut_at(
    encoded: Callable[..., dict[str, EncodedPart]],
) -> None:
    parts = encoded(questions=True, max_length=4)
    assert [row[-3] for row in parts["report-mmlu"].encoded["input_ids"][:]] == [FIRST + 6] * 4
    limit = question_limit(TextLimit(4096), longest=int(1e30))
    assert (limit.max_length, limit.truncation) == (4096, "tail")
    assert question_limit(TextLimit(128), longest=512).max_length == 504  # the answer has to fit in too


def test_prompts_and_targets_that_reach_their_lengths_are_counted_apart(
    encoded: Callable[..., dict[str, EncodedPart]],
) -> None:
    parts, limit = encoded(max_length=4, target_max_len=8), TextLimit(4, target_max_len=8)
    train, reached = parts["train"], reach(parts["train"], limit)
    assert reach(parts["test"], limit).keys() == {"max_length"}
    assert reached["max_length"].tolist() == [n + 1 >= 4 for n in words(train)]
    assert reached["target_max_len"].tolist() == [n + 2 >= 8 for n in words(train)]


def test_the_tokens_of_training_prompts_are_learnt_too_where_one_asks(
    encoded: Callable[..., dict[str, EncodedPart]],
) -> None:
    parts = encoded(train_on_source=True)
    train, validation = parts["train"], parts["validation"]
    assert set(train.targets.tolist()) == {1}
    np.testing.assert_array_equal(train.weights, train.lengths - 1)
    assert validation.targets.tolist() == [1 + n for n in words(validation)]


def batches(tokenizer: Any, text: str, *, chat: bool, label: str = "w1") -> dict[str, list[Any]]:
    table = pa.table({"text": [text], "label": [label]})
    (batch,) = encoded_prompts(table, tokenizer, TextLimit(32), chat=chat, rows=10)
    return batch.to_pydict()


def test_messages_go_through_the_chat_template_of_the_tokenizer(decoder: str) -> None:
    tokenizer = load_tokenizer(decoder)
    tokenizer.chat_template = TEMPLATE
    messages = json.dumps([{"role": "w10", "content": "w11 w12"}, {"role": "w20", "content": "w21"}])
    ids = [FIRST + word for word in (10, 11, 12, 20, 21, 59)]
    assert batches(tokenizer, messages, chat=True)["input_ids"] == [[*ids, FIRST + 1, END]]
    assert batches(tokenizer, messages, chat=True)["source"] == [6]


def test_a_tokenizer_without_a_chat_template_is_refused_for_chats(decoder: str) -> None:
    rule = r"must have a chat template for messages; got none; name a backbone that was tuned on chats"
    with pytest.raises(BackboneError, match=rule):
        batches(load_tokenizer(decoder), '[{"role": "user", "content": "a"}]', chat=True)


def test_messages_that_the_chat_template_refuses_are_told_with_its_reason(decoder: str) -> None:
    tokenizer = load_tokenizer(decoder)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(BackboneError, match="must be as the tokenizer's chat template asks; got roles must alternate"):
        batches(tokenizer, '[{"role": "user", "content": "a"}]', chat=True)


def test_an_empty_prompt_is_the_end_of_another_text_where_nothing_begins_one(tmp_path: Path) -> None:
    save_decoder(tmp_path, bos_token=None)
    assert batches(load_tokenizer(str(tmp_path)), "", chat=False)["source"] == [1]


def test_a_tokenizer_without_an_end_of_a_text_is_refused(tmp_path: Path) -> None:
    save_decoder(tmp_path, eos_token=None)
    with pytest.raises(BackboneError, match="must have an end of a text, to be learnt; got none; set eos_token"):
        batches(load_tokenizer(str(tmp_path)), "w1", chat=False)


def test_another_chat_template_or_length_of_targets_is_another_encoding(decoder: str) -> None:
    tokenizer, limit = load_tokenizer(decoder), TextLimit(8)
    keys = [prompt_key(tokenizer, limit, chat=False), prompt_key(tokenizer, TextLimit(8, target_max_len=9), chat=False)]
    for template in (TEMPLATE, "w1" + TEMPLATE):
        tokenizer.chat_template = template
        keys += [prompt_key(tokenizer, limit, chat=True), prompt_key(tokenizer, limit, chat=False)]
    assert [keys.index(key) for key in keys] == [0, 1, 2, 0, 4, 0]


def test_answers_that_begin_alike_are_refused(encoded: Callable[..., dict[str, EncodedPart]]) -> None:
    with pytest.raises(BackboneError, match=r"mmlu must have answers that begin with .* got 9 answers"):
        check_answers(encoded()["train"], where="mmlu")
