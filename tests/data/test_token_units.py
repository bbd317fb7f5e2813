"""Units are found among tokens: by their characters, in the window where they have most text on both sides."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tutti.data.batches import TokenRows
from tutti.data.distinct import distinct_rows
from tutti.data.encode import encode_rows, part_of
from tutti.data.packing import Packing
from tutti.records import TextLimit
from tutti.tasks.units import apart, spans_of, units_of

PIECES = ["new", "##er", "york", "a", "b", "c", "d", "e", "."]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = {name: number for number, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *PIECES])}
    made = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence([normalizers.Replace("\u200b", ""), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A $B [SEP]", [("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


def places(tokenizer: PreTrainedTokenizerFast, texts: list[str], limit: TextLimit) -> tuple[TokenRows, dict]:
    encoded = encode_rows(pa.table({"text": texts}), tokenizer=tokenizer, limit=limit)
    rows = TokenRows(part_of(np.arange(len(texts)), encoded, pad_token_id=0))
    return rows, rows.pad(np.arange(len(texts)))


def test_a_unit_has_its_first_and_last_token_and_one_without_a_token_that_of_the_next(tokenizer):
    texts = ["Newer York \u200b a", "a"]
    _, batch = places(tokenizer, texts, TextLimit(16, unit="word"))
    assert batch["input_ids"].tolist()[0] == [2, 4, 5, 6, 7, 3]
    assert batch["units"].tolist() == [
        [[0, 1, 2], [0, 3, 3], [0, 4, 4], [0, 4, 4]],
        [[0, 1, 1], [-1, -1, -1], [-1, -1, -1], [-1, -1, -1]],
    ]


def test_characters_of_one_token_share_it(tokenizer):
    _, batch = places(tokenizer, ["new."], TextLimit(16, unit="character"))
    assert batch["units"][0, :, 1].tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize("length", [5, 6, 9])
def test_each_unit_of_a_long_row_is_in_one_window_with_its_own_tokens(tokenizer, length):
    words = list("abcdeabcdeabcde")
    rows, batch = places(tokenizer, [" ".join(words), "a b"], TextLimit(length, unit="word"))
    counts = batch["windows"].tolist()
    assert counts[0] > 1
    assert batch["input_ids"].shape[1] <= length
    window, first, last = batch["units"][0].unbind(dim=1)
    ids = batch["input_ids"][window, first]
    assert tokenizer.convert_ids_to_tokens(ids.tolist()) == words
    assert first.equal(last)
    last_word = batch["attention_mask"][window].sum(dim=1) - 2
    assert ((first >= 1) & (first <= last_word)).all()
    assert (window.diff() >= 0).all()
    assert rows.pad(np.array([1]))["units"].shape == (1, 2, 3)


def test_packed_rows_have_all_units_also_where_several_share_a_token(tokenizer):
    table = pa.table({"text": ["new york new", "a"]})
    encoded = encode_rows(table, tokenizer=tokenizer, limit=TextLimit(9, unit="character"))
    part = part_of(np.arange(2), encoded, pad_token_id=0)
    packing = Packing.of(part.lengths, rows=2, max_tokens=None, multiple=1)
    packed = TokenRows(part).pack(np.arange(2), packing)["units"]
    assert packed[:2].equal(TokenRows(part).pad(np.arange(2))["units"])
    assert (packed[2:] == -1).all()


def test_all_windows_of_a_row_are_pretrained_on(tokenizer):
    encoded = encode_rows(pa.table({"text": ["a b c d e a b c"]}), tokenizer=tokenizer, limit=TextLimit(5, unit="word"))
    part = part_of(np.arange(1), encoded, pad_token_id=0)
    words = {token for row in distinct_rows([part])["input_ids"] for token in row}
    assert words == {2, 3, *tokenizer.convert_tokens_to_ids(["a", "b", "c", "d", "e"])}


def test_a_text_beside_is_read_in_front_in_each_window_and_has_no_units(tokenizer):
    table = pa.table({"text": [" ".join("abcdeabcde"), "a"], "text_b": ["new york", "new york"]})
    encoded = encode_rows(table, tokenizer=tokenizer, limit=TextLimit(9, unit="word"))
    batch = TokenRows(part_of(np.arange(2), encoded, pad_token_id=0)).pad(np.arange(2))
    windows = int(batch["windows"][0])
    assert windows > 1
    asked = tokenizer.convert_tokens_to_ids(["[CLS]", "new", "york"])
    assert batch["input_ids"][:, :3].tolist() == [asked] * (windows + 1)
    window, first, _ = batch["units"][0].unbind(dim=1)
    assert tokenizer.convert_ids_to_tokens(batch["input_ids"][window, first].tolist()) == list("abcdeabcde")
    assert batch["units"][1, 0].tolist() == [0, 3, 3]
    other = batch["units"][1]
    assert tokenizer.convert_ids_to_tokens(batch["input_ids"][windows, other[0, 1]].tolist()) == "a"


def test_a_symbol_is_read_apart_from_the_word_that_it_touches(tokenizer):
    texts = ["new😀york😀😀a", "new york a"]
    for unit in ("piece", "character"):
        _, batch = places(tokenizer, texts, TextLimit(16, unit=unit))
        assert batch["input_ids"][0].tolist() == [2, 4, 1, 6, 1, 1, 7, 3]
    assert batch["units"][0, :, 1].tolist() == [1, 1, 1, 2, 3, 3, 3, 3, 4, 5, 6]
    text = "a😀b c"
    spaced, spans = apart(text, spans_of(text, "piece"))
    assert [spaced[start:end] for start, end in spans] == ["a", "😀", "b", "c"]
    assert spaced == "a 😀 b c"


def test_pieces_of_running_text_are_words_with_their_accents_ideographs_and_signs():
    assert units_of("Dr. O'Neil, 北京3", "piece") == ["Dr", ".", "O", "'", "Neil", ",", "北", "京", "3"]
    assert units_of("cafe\u0301 बर्लिन 👍🏽a_b\n", "piece") == ["cafe\u0301", "बर्लिन", "👍🏽", "a", "_", "b"]
