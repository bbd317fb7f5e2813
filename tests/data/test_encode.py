from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from word_backbone import save_decoder

from tutti.config.study import TaskConfig
from tutti.data import encode
from tutti.data.encode import EncodedPart, load_parts, load_tokenizer, take
from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared
from tutti.data.special_tokens import marks_second_text, starts_special
from tutti.errors import BackboneError
from tutti.modeling.new_backbone import new_backbone
from tutti.records import TextLimit
from tutti.tasks.build import TaskSpec, task_spec

TRAIN = [(f"r{n}", " ".join(f"w{k}" for k in range(n % 7 + 1)), str(n % 2)) for n in range(40)]
CLS, SEP, FIRST = 2, 3, 4  # [CLS], [SEP], and w0 in the tests' vocabulary


@pytest.fixture
def prepared(make_spec: Callable[..., TaskSpec], tmp_path: Path) -> Prepared:
    single = make_spec(
        "A", train=TRAIN, extra=[([("x", "w9", "1")], 0.5)], test=[("0", "w1 w2 other")], unlabeled=[("0", "w1")]
    )
    pair = make_spec(
        "B",
        pair=True,
        train=[(*row[:2], "w50 w51", row[2]) for row in TRAIN],
        test=[("0", "w0 w1 w2 w3 w4 w5", "w6 w7"), ("1", "w0", "w1")],
    )
    return prepare([single, pair], validation=0.2, seed=0, folder=tmp_path / "data")


def alone(prepared: Prepared, task: str, part: str) -> Prepared:
    """The study with no other part."""
    return replace(prepared, parts={task: {part: prepared.parts[task][part]}})


def load_part(prepared: Prepared, *, task: str, part: str, **arguments: Any) -> EncodedPart:
    return load_parts(alone(prepared, task, part), **arguments)[task][part]


def test_a_tokenizer_of_a_sentencepiece_model_alone_is_read_as_that_of_deberta_v3(tmp_path: Path) -> None:
    import sentencepiece

    texts, folder = [" ".join(f"w{(n * k) % 50}" for k in range(8)) for n in range(300)], tmp_path / "deberta"
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(folder / "spm"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        **{f"{kind}_id": number for number, kind in enumerate(("pad", "bos", "eos", "unk"))},
        **{
            f"{kind}_piece": f"[{name}]"
            for kind, name in (("pad", "PAD"), ("bos", "CLS"), ("eos", "SEP"), ("unk", "UNK"))
        },
    )
    (folder / "config.json").write_text('{"model_type": "deberta-v2"}')
    (folder / "tokenizer_config.json").write_text('{"vocab_type": "spm"}')
    tokenizer = encode.load_tokenizer(str(folder))
    first, *_, last = tokenizer("w1 w2", "w3")["input_ids"]
    assert tokenizer.convert_ids_to_tokens([first, last]) == ["[CLS]", "[SEP]"]
    assert tokenizer.pad_token_id == 0


def files_of(cache: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()}


def encode_test(
    prepared: Prepared, tokenizer: str, cache: Path, *, max_length: int = 16, task: str = "A"
) -> list[list]:
    part = load_part(prepared, task=task, part="test", tokenizer=tokenizer, limit=TextLimit(max_length), cache=cache)
    return part.encoded["input_ids"][:]


def test_rows_labels_and_weights_stand_in_the_order_of_the_part(prepared, tokenizer_folder, tmp_path):
    part = load_part(
        prepared, task="A", part="train", tokenizer=tokenizer_folder, limit=TextLimit(16), cache=tmp_path / "c"
    )
    rows = prepared.rows("A", "train")
    expected = [[CLS, *(FIRST + int(word[1:]) for word in text.split()), SEP] for text in rows["text"]]
    assert part.encoded["input_ids"][:] == expected
    assert part.lengths.tolist() == part.encoded["length"][:] == [len(row) for row in expected]
    assert part.ids.tolist() == rows["id"].tolist()
    assert part.labels is not None
    assert part.labels.tolist() == rows["label"].tolist()
    assert part.weights.tolist() == [0.5 if identity == "extra0/x" else 1.0 for identity in rows["id"]]
    dtypes = part.lengths.dtype, part.labels.dtype, part.weights.dtype
    assert dtypes == (np.int32, np.int64, np.float32)
    assert part.labels.flags.writeable  # torch warns about read-only arrays
    assert part.weights.flags.writeable
    assert part.pad_token_id == 0
    assert str(part.encoded.features["input_ids"].feature.dtype) == "int32"


def test_a_part_without_labels_has_none_and_weighs_one(prepared, tokenizer_folder, tmp_path):
    part = load_part(
        prepared, task="A", part="test", tokenizer=tokenizer_folder, limit=TextLimit(16), cache=tmp_path / "c"
    )
    assert part.labels is None
    assert part.weights.tolist() == [1.0]
    assert part.encoded["input_ids"][:] == [[CLS, FIRST + 1, FIRST + 2, 1, SEP]]


def test_the_longer_text_of_a_pair_is_cut_first_and_token_types_tell_them_apart(prepared, tokenizer_folder, tmp_path):
    part = load_part(
        prepared, task="B", part="test", tokenizer=tokenizer_folder, limit=TextLimit(8), cache=tmp_path / "c"
    )
    assert part.encoded[0]["input_ids"] == [CLS, *range(FIRST, FIRST + 3), SEP, FIRST + 6, FIRST + 7, SEP]
    assert part.encoded[0]["token_type_ids"] == [0] * 5 + [1] * 3
    assert part.lengths.tolist() == [8, 5]


def test_a_tokenizer_without_token_types_leaves_that_column_out(prepared, tokenizer_folder, tmp_path):
    from transformers import AutoTokenizer

    plain = AutoTokenizer.from_pretrained(tokenizer_folder, model_input_names=["input_ids", "attention_mask"])
    plain.save_pretrained(tmp_path / "plain")
    part = load_part(
        prepared, task="A", part="test", tokenizer=str(tmp_path / "plain"), limit=TextLimit(16), cache=tmp_path / "c"
    )
    assert part.encoded.column_names == ["input_ids", "length"]
    assert not marks_second_text(plain)
    assert marks_second_text(AutoTokenizer.from_pretrained(tokenizer_folder))


def test_a_tokenizer_that_puts_its_token_behind_the_text_is_told_from_one_that_puts_it_in_front(tokenizer_folder):
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    assert starts_special(tokenizer)
    ends = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A [SEP] [CLS]", special_tokens=ends)
    assert not starts_special(tokenizer)  # as with XLNet


def test_texts_are_encoded_once_and_then_only_mapped(prepared: Prepared, tokenizer_folder: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = encode_test(prepared, tokenizer_folder, cache)
    files = files_of(cache)
    assert encode_test(prepared, tokenizer_folder, cache) == first
    assert files_of(cache) == files
    assert len(files) == 2


def test_all_parts_are_as_loaded_one_by_one(prepared, tokenizer_folder, tmp_path, monkeypatch):
    read: list[str] = []
    load = encode.load_tokenizer
    monkeypatch.setattr(encode, "load_tokenizer", lambda name: [read.append(name), load(name)][1])
    arguments = {"tokenizer": tokenizer_folder, "limit": TextLimit(8)}
    together = load_parts(prepared, **arguments, cache=tmp_path / "together")
    assert read == [tokenizer_folder]
    assert {task: set(parts) for task, parts in together.items()} == {
        "A": {"train", "validation", "test", "unlabeled"},
        "B": {"train", "validation", "test"},
    }
    for task, parts in together.items():
        for name, part in parts.items():
            by_itself = load_part(prepared, task=task, part=name, **arguments, cache=tmp_path / "alone")
            assert part.encoded[:] == by_itself.encoded[:]
    tables = [{folder.name for folder in (tmp_path / name).iterdir()} for name in ("together", "alone")]
    assert tables[0] == tables[1]


def test_another_study_on_the_same_texts_encodes_nothing(prepared, make_spec, tokenizer_folder, tmp_path):
    cache = tmp_path / "cache"
    first = encode_test(prepared, tokenizer_folder, cache)
    files = files_of(cache)
    other = make_spec("Other", train=TRAIN, test=[("other id", "w1 w2 other")])
    again = prepare([other], validation=0.3, seed=7, folder=tmp_path / "other")
    assert encode_test(again, tokenizer_folder, cache, task="Other") == first
    assert files_of(cache) == files


def test_texts_length_and_tokenizer_each_make_another_table(prepared, tokenizer_folder, tmp_path):
    from transformers import AutoTokenizer

    cache = tmp_path / "cache"
    encode_test(prepared, tokenizer_folder, cache)
    assert encode_test(prepared, tokenizer_folder, cache, max_length=4) == [[CLS, FIRST + 1, FIRST + 2, SEP]]
    encode_test(prepared, tokenizer_folder, cache, task="B")
    grown = AutoTokenizer.from_pretrained(tokenizer_folder)
    grown.add_tokens(["other"])
    grown.save_pretrained(tmp_path / "grown")
    assert encode_test(prepared, str(tmp_path / "grown"), cache) == [[CLS, FIRST + 1, FIRST + 2, FIRST + 100, SEP]]
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("damaged", ["encoded.arrow", "info.json"])
def test_a_damaged_table_is_made_anew(prepared: Prepared, tokenizer_folder: str, tmp_path: Path, damaged: str) -> None:
    cache = tmp_path / "cache"
    first = encode_test(prepared, tokenizer_folder, cache)
    (file,) = cache.rglob(damaged)
    file.write_bytes(file.read_bytes()[:-20])
    assert encode_test(prepared, tokenizer_folder, cache) == first
    file.unlink()
    assert encode_test(prepared, tokenizer_folder, cache) == first


def test_processes_that_encode_at_the_same_time_agree(prepared, tokenizer_folder, tmp_path):
    cache = tmp_path / "cache"
    # Spawned, because this process has threads: a forked child may inherit a lock that is never released.
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        arguments = {"tokenizer": tokenizer_folder, "limit": TextLimit(16), "cache": cache}
        futures = [pool.submit(load_parts, alone(prepared, "A", "test"), **arguments) for _ in range(6)]
    parts = [done.result()["A"]["test"] for done in futures]
    assert [part.encoded["input_ids"][:] for part in parts] == [[[CLS, FIRST + 1, FIRST + 2, 1, SEP]]] * 6
    assert len([folder for folder in cache.iterdir() if not folder.name.startswith(".")]) == 1
    assert not list(cache.glob(".*"))


def test_an_empty_text_to_predict_is_its_special_tokens(make_spec, tokenizer_folder, tmp_path):
    spec = make_spec(train=[("0", "w1", "a"), ("1", "w2", "b"), ("2", "w3", "a"), ("3", "w4", "b")], test=[("0", "")])
    prepared = prepare([spec], validation=0.5, seed=0, folder=tmp_path / "prepared")
    assert encode_test(prepared, tokenizer_folder, tmp_path / "cache") == [[CLS, SEP]]


def test_a_tokenizer_without_padding_token_pads_with_another_special_one_or_is_refused(
    prepared: Prepared, tmp_path: Path
) -> None:
    save_decoder(tmp_path / "bare", pad_token=None)
    tokenizer = load_tokenizer(str(tmp_path / "bare"))
    assert (tokenizer.pad_token, len(tokenizer)) == ("</s>", 64)
    save_decoder(tmp_path / "bare", pad_token=None, bos_token=None, eos_token=None)
    with pytest.raises(BackboneError, match="must have a padding token"):
        encode_test(prepared, str(tmp_path / "bare"), tmp_path / "cache")


def test_a_decoder_reads_the_texts_of_a_pair_one_below_the_other_in_either_order(
    make_spec: Callable[..., TaskSpec], tmp_path: Path
) -> None:
    rows = [(str(row), f"w{row}", f"w{row + 9}", "ab"[row % 2]) for row in range(8)]
    spec = make_spec("A", pair=True, train=rows, test=[("0", "w1 w2", "w3")])
    new_backbone(texts=[Path(__file__)], size="tiny", out=tmp_path / "decoder", architecture="decoder", vocabulary=300)
    prepared = prepare([spec], validation=0.5, seed=0, folder=tmp_path / "prepared")
    limit = TextLimit(32, swap=True)
    parts = load_parts(prepared, tokenizer=str(tmp_path / "decoder"), limit=limit, cache=tmp_path / "cache")["A"]
    tokenizer, test = load_tokenizer(str(tmp_path / "decoder")), parts["test"]
    assert tokenizer.decode(test.encoded["input_ids"][0]) == "<s>w1 w2\nw3"
    assert tokenizer.decode(test.swapped.encoded["input_ids"][0]) == "<s>w3\nw1 w2"
    assert parts["train"].swapped is None
    assert take(test, np.array([0])).swapped.lengths.tolist() == [len(test.swapped.encoded["input_ids"][0])]


def test_a_pair_in_one_template_is_read_as_one_text_in_either_order(tokenizer_folder: str, tmp_path: Path) -> None:
    lines = [f"w{row},w{row + 9},{'ab'[row % 2]}\n" for row in range(8)]
    (tmp_path / "rows.csv").write_text("".join(["a,b,label\n", *lines]))
    columns, files = {"text": "a", "text_b": "b"}, {name: str(tmp_path / "rows.csv") for name in ("train", "test")}
    spec = task_spec("A", TaskConfig(layout="table", **files, template="w40 {a} w41 {b}", columns=columns))
    prepared = prepare([spec], validation=0.5, seed=0, folder=tmp_path / "prepared")
    options: dict[str, Any] = {"tokenizer": tokenizer_folder, "cache": tmp_path / "cache"}
    for limit in (TextLimit(32), TextLimit(32, swap=True)):
        parts = load_parts(prepared, limit=limit, **options)["A"]
        orders = [parts["test"], *filter(None, [parts["test"].swapped])]
        texts = [[40, 0, 41, 9], [40, 9, 41, 0]][: len(orders)]
        expected = [[CLS, *(FIRST + word for word in words), SEP] for words in texts]
        assert [each.encoded["input_ids"][0] for each in orders] == expected
        assert len(orders) == 1 + limit.swap
        assert (parts["validation"].swapped is not None) == limit.swap
        assert parts["train"].swapped is None
