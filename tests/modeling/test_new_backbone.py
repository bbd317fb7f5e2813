"""A new backbone is a folder that the Auto classes load, and is reproducible from texts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import get_args

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForPreTraining, AutoTokenizer

from tutti.errors import BackboneError
from tutti.files import sha256_of
from tutti.modeling.new_backbone import SIZES, NewBackbone, new_backbone
from tutti.modeling.new_tokenizer import TokenizerKind

TEXT = "0\tThe quick brown fox jumps\tover lazy dogs\t1\n1\t今天天气很好，心情不错\t大家好\t0\n" * 20


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.csv"
    path.write_text(TEXT, encoding="utf-8")
    return path


def make(text: Path, out: Path, **options: object) -> NewBackbone:
    return new_backbone(**{"texts": [text], "size": "tiny", "out": out} | options)  # type: ignore[arg-type]


def test_the_auto_classes_load_it_and_it_encodes_pairs(texts: Path, tmp_path: Path) -> None:
    backbone = make(texts, tmp_path / "backbone")
    model, tokenizer = AutoModel.from_pretrained(backbone.path), AutoTokenizer.from_pretrained(backbone.path)
    encoded = tokenizer("The QUICK fox", "今天", return_tensors="pt")
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"][0]) == (
        ["[CLS]", "the", "quick", "fox", "[SEP]", "今", "天", "[SEP]"]
    )
    assert encoded["token_type_ids"][0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert model(**encoded).last_hidden_state.shape == (1, 8, SIZES["tiny"].hidden)
    assert backbone.vocabulary == len(tokenizer) == model.config.vocab_size
    assert backbone.weights == sum(weights.numel() for weights in model.parameters())


@pytest.mark.parametrize(("size", "low", "high"), [("tiny", 1.0e6, 2e6), ("mini", 4e6, 5e6), ("small", 11e6, 15e6)])
def test_sizes_have_the_weights_they_are_said_to_have(size: str, low: float, high: float, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(f"{chr(0x4E00 + i)} {chr(0x4E00 + i)}" for i in range(7_000)), encoding="utf-8")
    backbone = make(texts, tmp_path / "backbone", size=size, vocabulary=6_000)
    assert low < backbone.weights + (6_000 - backbone.vocabulary) * SIZES[size].hidden < high


def test_an_electra_of_a_published_size_is_a_discriminator_and_no_other_architecture_has_it(texts, tmp_path):
    made = make(texts, tmp_path / "made", architecture="electra", size="electra-small")
    model = AutoModelForPreTraining.from_pretrained(made.path)
    assert type(model).__name__ == "ElectraForPreTraining"
    assert (model.config.embedding_size, model.config.hidden_size, model.config.num_hidden_layers) == (128, 256, 12)
    with pytest.raises(BackboneError, match="--size must be tiny, mini or small for a new encoder; got electra-small"):
        make(texts, tmp_path / "other", size="electra-small")


def test_a_unigram_tokenizer_has_words_of_several_chinese_characters_and_encodes_pairs(tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    draw = random.Random(0)
    words = ["今天", "天气", "心情", "好", "坏", "小", "大"]
    texts.write_text("\n".join("".join(draw.choices(words, k=8)) for _ in range(200)), encoding="utf-8")
    backbone = make(texts, tmp_path / "backbone", tokenizer="unigram", vocabulary=100)
    tokenizer = AutoTokenizer.from_pretrained(backbone.path)
    encoded = tokenizer("今天小天气", "好 THE", return_tensors="pt")
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"][0]) == (
        ["[CLS]", "今天", "小", "天气", "[SEP]", "好", "[UNK]", "[SEP]"]
    )
    assert encoded["token_type_ids"][0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert backbone.vocabulary == len(tokenizer)
    assert tokenizer.mask_token == "[MASK]"


@pytest.mark.parametrize("tokenizer", get_args(TokenizerKind))
def test_the_same_texts_give_the_same_files(tokenizer: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    draw = random.Random(0)
    texts.write_text(
        "\n".join("".join(draw.choices("今天气很好心情不错大家", k=8)) for _ in range(200)), encoding="utf-8"
    )
    first, second = tmp_path / "first", tmp_path / "second"
    architecture = "decoder" if tokenizer == "bytes" else "encoder"
    make(texts, first, tokenizer=tokenizer, architecture=architecture, vocabulary=300)
    make(texts, second, tokenizer=tokenizer, architecture=architecture, vocabulary=300)
    files = sorted(file.name for file in first.iterdir())
    assert [sha256_of(first / name) for name in files] == [sha256_of(second / name) for name in files]


def test_the_callers_random_state_is_left_alone(texts: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    make(texts, tmp_path / "backbone")
    assert torch.equal(torch.rand(1), expected)


def test_a_vocabulary_is_bounded(texts: Path, tmp_path: Path) -> None:
    assert make(texts, tmp_path / "backbone", vocabulary=100).vocabulary <= 100


def test_a_unigram_vocabulary_holds_no_more_than_it_was_given(tmp_path: Path) -> None:
    texts, special = tmp_path / "texts.txt", 5
    characters = [chr(0x4E00 + number) for number in range(120)]
    draw = random.Random(0)
    words = ["".join(draw.choices(characters, k=draw.randint(1, 4))) for _ in range(120)]
    lines = ["".join(characters), *("".join(draw.choices(words, k=6)) for _ in range(300))]
    texts.write_text("\n".join(lines), encoding="utf-8")
    for most in (120 + special, 120 + special + 1, 150):
        made = make(texts, tmp_path / str(most), tokenizer="unigram", vocabulary=most)
        assert made.vocabulary == most
    assert set(characters) <= set(AutoTokenizer.from_pretrained(tmp_path / str(120 + special)).get_vocab())
    for few in (120, 120 + special - 1):
        with pytest.raises(
            BackboneError, match=r"every character of the texts, and 5 special tokens; got 12\d entries"
        ):
            make(texts, tmp_path / str(few), tokenizer="unigram", vocabulary=few)


def test_a_folder_that_holds_files_is_never_overwritten_and_an_empty_one_is_used(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "backbone"
    out.mkdir()
    make(texts, out)
    before = sha256_of(out / "model.safetensors")
    with pytest.raises(BackboneError, match="must be a new or an empty folder; got a folder that holds files"):
        make(texts, out, size="mini")
    assert sha256_of(out / "model.safetensors") == before
    with pytest.raises(BackboneError, match="got a file; name another folder"):
        make(texts, texts)


def test_the_current_folder_is_not_replaced(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(BackboneError, match="got the current folder; name a folder inside it"):
        new_backbone(texts=[texts], size="tiny", out=Path())


def test_every_fault_is_told_at_once(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(BackboneError) as raised:
        make(texts, texts, texts=[tmp_path / "none.txt", tmp_path / "latin.txt", tmp_path])
    messages = [str(fault) for fault in raised.value.faults]
    assert messages == [
        f"{texts} must be a new or an empty folder; got a file; name another folder.",
        f"{tmp_path}/none.txt must be a text file; got no such file; correct the path.",
        f"{tmp_path}/latin.txt must be UTF-8 text; got a byte that is not (unexpected end of data); "
        "save the file as UTF-8 or leave it out.",
        f"{tmp_path} must be a text file; got a folder; correct the path.",
    ]
    assert texts.read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize("content", ["", " \n\t\n"])
def test_texts_without_a_word_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(BackboneError, match="the texts must"):
        make(path, tmp_path / "backbone")
    assert not (tmp_path / "backbone").exists()


@pytest.mark.parametrize("files", [["--texts", "a.txt", "b.txt"], ["--texts", "a.txt", "--texts", "b.txt"]])
def test_the_command_takes_all_texts_after_one_option_or_each_after_its_own(tmp_path, monkeypatch, files):
    from transformers import AutoTokenizer
    from typer.testing import CliRunner

    from tutti.cli.app import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("apple orange apple orange\n" * 20, encoding="utf-8")
    (tmp_path / "b.txt").write_text("window garden window garden\n" * 20, encoding="utf-8")
    result = CliRunner().invoke(app, ["backbone", "new", *files, "--out", "made"])
    assert result.exit_code == 0, result.output
    assert {"apple", "window"} <= set(AutoTokenizer.from_pretrained(tmp_path / "made").get_vocab())


def test_a_decoder_has_its_language_model_head_and_a_tokenizer_that_keeps_every_character(texts, tmp_path):
    backbone = make(texts, tmp_path / "backbone", architecture="decoder", vocabulary=320)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(backbone.path), AutoTokenizer.from_pretrained(backbone.path)
    encoded = tokenizer("The QUICK 天气 😀", return_tensors="pt")
    assert encoded["input_ids"][0, 0] == tokenizer.bos_token_id
    assert tokenizer.decode(encoded["input_ids"][0, 1:]) == "The QUICK 天气 😀"
    assert model(**encoded).logits.shape[2] == len(tokenizer) == backbone.vocabulary
    assert backbone.weights == sum(weights.numel() for weights in model.parameters())


def test_a_tokenizer_that_the_architecture_does_not_take_is_refused(texts, tmp_path):
    with pytest.raises(BackboneError, match="the tokenizer must be bytes for a new decoder; got unigram"):
        make(texts, tmp_path / "backbone", architecture="decoder", tokenizer="unigram")
