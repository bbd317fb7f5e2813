"""Text files become rows: documents held out whole, counted once, packed across documents, with words marked."""

from __future__ import annotations

import gzip
import json

import pandas as pd
import pytest

from tutti.data.corpus import CorpusOptions, load_corpus
from tutti.data.documents import read_documents
from tutti.data.encode import load_tokenizer
from tutti.errors import BackboneError, StudyError
from tutti.modeling.new_tokenizer import train_tokenizer


@pytest.fixture
def tokenizer(backbone):
    return load_tokenizer(str(backbone))


@pytest.fixture
def texts(tmp_path):
    """A hundred documents of six words of their own, and one of them again."""
    lines = [f"w{row // 10} w{10 + row % 10} w{20 + row % 7} w30 w31 w32" for row in range(100)]
    (tmp_path / "texts.txt").write_text("\n".join([*lines, lines[0]]) + "\n")
    return tmp_path / "texts.txt"


def load(file, tokenizer, tmp_path, **options):
    return load_corpus([file], tokenizer=tokenizer, cache=tmp_path / "cache", options=CorpusOptions(**options))


def documents_in(rows):
    """The documents of packed or unpacked rows, as tuples of their tokens."""
    documents, current = set(), []
    for row in rows["input_ids"]:
        for token in row[1:]:
            if token == 3:
                documents.add(tuple(current))
                current = []
            else:
                current.append(token)
    return documents | ({tuple(current)} if current else set())


@pytest.mark.parametrize("packed", [True, False])
def test_documents_are_held_out_whole_counted_once_and_fill_rows(texts, tokenizer, tmp_path, packed):
    corpus = load(texts, tokenizer, tmp_path, max_length=15, packed=packed)
    assert corpus.documents == 100
    train, held_out = documents_in(corpus.train), documents_in(corpus.held_out)
    assert len(held_out) == 5
    assert not train & held_out
    expected = {tuple(ids) for ids in tokenizer(texts.read_text().splitlines(), add_special_tokens=False)["input_ids"]}
    assert train | held_out == expected
    lengths = corpus.train["length"][:]
    assert lengths == [len(row) for row in corpus.train["input_ids"]]
    assert set(lengths[:-1]) == {15 if packed else 8}
    assert (
        load(texts, tokenizer, tmp_path, max_length=15, packed=packed).train["input_ids"][:]
        == (corpus.train["input_ids"][:])
    )


def test_other_texts_have_another_identity(texts, tokenizer, tmp_path):
    before = load(texts, tokenizer, tmp_path).identity
    texts.write_text(texts.read_text() + "w1 w2\n")
    assert load(texts, tokenizer, tmp_path).identity != before


def test_a_long_document_is_cut_and_one_of_a_single_token_left_out(tokenizer, tmp_path):
    file = tmp_path / "long.txt"
    file.write_text("\n".join(" ".join(f"w{(row + word) % 59}" for word in range(20)) for row in range(59)) + "\nw1\n")
    rows = load(file, tokenizer, tmp_path, max_length=12, packed=False).train["input_ids"][:]
    assert all(row[0] == 2 and row[-1] == 3 for row in rows)
    assert {len(row) for row in rows} == {12}


def test_word_starts_are_those_of_words_and_in_chinese_of_the_segmenter(tmp_path):
    pytest.importorskip("jieba")
    lines = ["我来到北京清华大学 playing games"] * 3 + ["他来到了网易杭研大厦 playing well"] * 3
    tokenizer = train_tokenizer(
        ["play games well ing"] * 50 + lines, kind="wordpiece", vocabulary=120, longest_input=64
    )
    (tmp_path / "zh.txt").write_text("\n".join(lines))
    corpus = load(tmp_path / "zh.txt", tokenizer, tmp_path, packed=False, whole_words=True)
    (row,) = [corpus.train[0]]
    pieces = tokenizer.convert_ids_to_tokens(row["input_ids"])
    words = []
    for piece, start in zip(pieces, row["starts"], strict=True):
        words = [*words, piece] if start else [*words[:-1], words[-1] + piece.removeprefix("##")]
    assert "来到" in words
    assert "playing" in words
    assert "".join(words).count("[CLS]") == 1


def test_word_starts_without_chinese_need_no_segmenter(texts, tokenizer, tmp_path):
    corpus = load(texts, tokenizer, tmp_path, max_length=15, whole_words=True)
    assert all(all(row) for row in corpus.train["starts"])


def test_a_missing_segmenter_is_told_in_one_sentence(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jieba", None)
    (tmp_path / "zh.txt").write_text("我来到北京\n他来到了网易\n")
    with pytest.raises(BackboneError, match=r"jieba must be installed .*; run `pip install 'tutti\[pretraining\]'`"):
        load(tmp_path / "zh.txt", tokenizer, tmp_path, whole_words=True)


def test_every_layout_gives_its_documents(tmp_path):
    texts = ["One, two.", 'Drei "vier"', "五"]
    table = pd.DataFrame({"n": range(3), "text": texts})
    table.to_csv(tmp_path / "a.csv", index=False)
    with gzip.open(tmp_path / "a.tsv.gz", "wt", encoding="utf8") as file:
        file.writelines(f"{number}\t{text}\n" for number, text in [("n", "text"), *enumerate(texts)])
    table.to_parquet(tmp_path / "a.parquet")
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    for name in ("a.csv", "a.tsv.gz", "a.parquet", "a.jsonl.gz", "a.txt"):
        assert list(read_documents(tmp_path / name, end="blank-line")) == texts, name
    (tmp_path / "b.txt").write_text("a\nb\n\nc\n")
    assert list(read_documents(tmp_path / "b.txt")) == ["a", "b", "c"]
    assert list(read_documents(tmp_path / "b.txt", end="blank-line")) == ["a\nb", "c"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"\n\n", "must hold some text; got an empty file"),
        ("latin.txt", b"caf\xe9 two\n", "must be UTF-8 text"),
        ("other.csv", b"title,id\na b,1\n", r"must have the column 'text'; got title, id; name .* by --columns"),
        ("half.jsonl", b'{"text": "a b"}\n{"text', "must be readable to its end"),
        ("short.txt", b"w1\nw2\nw3\n", "must hold at least two different texts of two tokens or more"),
        ("one.txt", b"w1 w2\n", "must hold at least two different texts of two tokens or more"),
    ],
)
def test_bad_files_are_told_in_one_sentence(tokenizer, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StudyError, match=message):
        load(tmp_path / name, tokenizer, tmp_path)
    assert not list((tmp_path / "cache").glob("*"))


def test_a_file_that_is_not_there_is_told_with_the_nearest_name(texts, tokenizer, tmp_path):
    with pytest.raises(StudyError, match=r"must be a text file; got no such file; did you mean 'texts\.txt'"):
        load(tmp_path / "text.txt", tokenizer, tmp_path)
