"""A corpus for pretraining: texts read once, tokenized by several processes, and kept as memory-mapped Arrow."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tutti.config.pretraining import DocumentEnd
from tutti.data.documents import read_documents
from tutti.data.encoding_key import encoding_key
from tutti.data.special_tokens import starts_special
from tutti.errors import BackboneError, Fault, StudyError
from tutti.files import sha256_of, whole_folder
from tutti.records import TextLimit

if TYPE_CHECKING:
    from datasets import Dataset

HELD_OUT_SHARE, MAX_HELD_OUT = 0.05, 2_000  # share and maximum number of documents held out to measure the loss
_BATCH = 1_000  # documents
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")
_FORMAT = 1  # of the cached tables


@dataclass(frozen=True)
class CorpusOptions:
    """How texts become rows.

    Attributes:
        columns, end: see ``read_documents``.
        max_length: most tokens of a row.
        packed: whether rows are filled across documents, with separators; otherwise a document begins a row.
        whole_words: whether rows say where words begin: by the tokenizer, in Chinese by ``jieba``.
        seed: of the draw of held-out documents.
    """

    columns: tuple[str, ...] = ("text",)
    end: DocumentEnd = "line"
    max_length: int = 128
    packed: bool = True
    whole_words: bool = False
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Corpus:
    """Rows to train on, and rows of held-out documents.

    Attributes:
        train, held_out: memory-mapped, with the columns ``input_ids`` (list of int32), ``length`` (int32) and perhaps
            ``token_type_ids`` (list of int32) and ``starts`` (list of bool: whether a word begins at this token).
        identity: differs for other texts, another tokenizer or other options.
        documents: the number of distinct documents, held-out ones included.
    """

    train: Dataset
    held_out: Dataset
    identity: str
    documents: int = field(default=0)


def corpus_of_rows(rows: Dataset, *, identity: str, seed: int) -> Corpus:
    """The corpus of rows that are encoded already and all distinct, such as a study's."""
    split = rows.train_test_split(_held_out_count(len(rows)), seed=seed)
    return Corpus(split["train"], split["test"], identity, len(rows))


def load_corpus(
    files: Sequence[Path], *, tokenizer: Any, cache: Path, options: CorpusOptions, processes: int = 1
) -> Corpus:
    """The corpus of text files; tokenized only where the cache lacks it. Equal documents count once.

    A document is held out as a whole, so that no held-out row holds text that is trained on.

    Args:
        tokenizer: from ``load_tokenizer``; a fast one if ``options.whole_words``.
        cache: a folder for the tables of any number of corpora.
        processes: that tokenize.

    Raises:
        StudyError: if a file cannot be read or is empty, or fewer than two documents have two tokens or more.
        BackboneError: if words cannot be told: the tokenizer is not a fast one, or ``jieba`` is not installed.
        StorageError: if the cache cannot be written.
    """
    from datasets import Dataset, load_from_disk  # slow to import

    if options.whole_words and not tokenizer.is_fast:
        rule, remedy = "be a fast one, which says where words begin", "leave --whole-words out"
        raise BackboneError(Fault(f"the tokenizer of {tokenizer.name_or_path}", rule, "a slow one", remedy))
    key = encoding_key(tokenizer, TextLimit(options.max_length))  # before the tokenizer is used, which changes it
    hashes = [sha256_of(file) if file.is_file() else "" for file in files]
    settings = json.dumps([_FORMAT, key, hashes, [file.suffixes for file in files], asdict(options)])
    identity = hashlib.sha256(settings.encode()).hexdigest()[:32]
    folder = cache / identity
    if not folder.is_dir():
        with whole_folder(folder, unless=folder.is_dir) as temporary:
            has_han = _write_documents(temporary / "documents.arrow", files, options)
            if has_han and options.whole_words:
                _segmenter()
            documents = Dataset.from_file(str(temporary / "documents.arrow"))
            _write_rows(temporary, documents, _Encoder(tokenizer, options), options=options, processes=processes)
            (temporary / "documents.json").write_text(str(len(documents)))
            (temporary / "documents.arrow").unlink()
    train, held_out = (load_from_disk(str(folder / name)) for name in ("train", "held_out"))
    return Corpus(train, held_out, identity, int((folder / "documents.json").read_text()))


def _held_out_count(count: int) -> int:
    if count < 2:
        rule = "hold at least two different texts of two tokens or more, one of them to be held out"
        raise StudyError(Fault("the texts", rule, str(count), "add rows or files"))
    return min(MAX_HELD_OUT, max(1, round(HELD_OUT_SHARE * count)))


def _write_documents(table: Path, files: Sequence[Path], options: CorpusOptions) -> bool:
    """Writes the distinct documents of all files. Returns whether one has Chinese characters."""
    schema, has_han = pa.schema([("text", pa.large_string())]), False
    with pa.OSFile(str(table), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        distinct = _distinct(files, options)
        while texts := list(islice(distinct, _BATCH)):
            has_han = has_han or any(map(_HAN.search, texts))
            writer.write_batch(pa.record_batch([pa.array(texts, pa.large_string())], schema=schema))
    return has_han


def _distinct(files: Sequence[Path], options: CorpusOptions) -> Iterator[str]:
    seen: set[bytes] = set()  # of digests, since the texts themselves may not fit into memory
    for text in chain.from_iterable(read_documents(file, columns=options.columns, end=options.end) for file in files):
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        if digest not in seen:
            seen.add(digest)
            yield text


def _write_rows(folder: Path, documents: Dataset, encoder: _Encoder, *, options: CorpusOptions, processes: int) -> None:
    from datasets import Features, List, Value
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    held_out = np.zeros(len(documents), dtype=bool)
    drawn = np.random.default_rng(options.seed).permutation(len(documents))
    held_out[drawn[: _held_out_count(len(documents))]] = True
    features = {"input_ids": List(Value("int32")), "length": Value("int32")}
    features |= {"starts": List(Value("bool"))} if options.whole_words else {}
    quiet = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        for name, chosen in (("train", ~held_out), ("held_out", held_out)):
            rows = documents.select(np.flatnonzero(chosen), keep_in_memory=True).map(
                encoder,
                batched=True,
                batch_size=_BATCH,
                num_proc=processes if processes > 1 and chosen.sum() > _BATCH else None,
                remove_columns=["text"],
                features=Features(features),
                new_fingerprint=name,  # hashing the tokenizer takes longer
                cache_file_name=str(folder / f"{name}.arrow"),
            )
            if not len(rows):
                _held_out_count(0)
            rows.save_to_disk(str(folder / name))
            for file in folder.glob(f"{name}*.arrow"):
                file.unlink()
    finally:
        if not quiet:
            enable_progress_bars()


class _Encoder:
    """Maps a batch of documents to rows. Documents of fewer than two tokens are left out: they say nothing."""

    def __init__(self, tokenizer: Any, options: CorpusOptions) -> None:
        self._tokenizer, self._options = tokenizer, options
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
        first = tokenizer.bos_token_id if first is None else first
        last = tokenizer.eos_token_id if last is None else last
        self._begin = [first] if starts_special(tokenizer) and first is not None else []
        self._end = [] if last is None else [last]

    def __call__(self, batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        """``{"text": texts}`` to ``{"input_ids": rows, "length": lengths, "starts": rows of bool}``."""
        marks = self._options.whole_words
        encoded = self._tokenizer(
            batch["text"],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=marks,
            verbose=False,
        )
        documents = [
            (ids, self._starts(text, encoded[number]) if marks else [])
            for number, (text, ids) in enumerate(zip(batch["text"], encoded["input_ids"], strict=True))
            if len(ids) > 1
        ]
        cut = self._packed(documents) if self._options.packed else self._apart(documents)
        rows = [row for row in cut if len(row[0]) > len(self._begin) + 1]
        columns: dict[str, list[Any]] = {"input_ids": [ids for ids, _ in rows], "length": [len(ids) for ids, _ in rows]}
        return columns | ({"starts": [starts for _, starts in rows]} if marks else {})

    def _packed(self, documents: Sequence[tuple[list[int], list[bool]]]) -> Iterator[tuple[list[int], list[bool]]]:
        """Rows of full length across documents, each of which is ended by a separator; the last row may be shorter."""
        ids = [token for tokens, _ in documents for token in (*tokens, *self._end)]
        starts = [start for _, all_starts in documents for start in (*all_starts, *(True for _ in self._end))]
        room = self._options.max_length - len(self._begin)
        for first in range(0, len(ids), room):
            yield self._row(ids[first : first + room], starts[first : first + room], [])

    def _apart(self, documents: Sequence[tuple[list[int], list[bool]]]) -> Iterator[tuple[list[int], list[bool]]]:
        room = self._options.max_length - len(self._begin) - len(self._end)
        for ids, starts in documents:
            for first in range(0, len(ids), room):
                yield self._row(ids[first : first + room], starts[first : first + room], self._end)

    def _row(self, ids: list[int], starts: list[bool], end: list[int]) -> tuple[list[int], list[bool]]:
        return [*self._begin, *ids, *end], [*(True for _ in self._begin), *starts, *(True for _ in end)]

    def _starts(self, text: str, encoding: Any) -> list[bool]:
        """``(tokens,)`` whether a word begins at each token of a text."""
        words = [None, *encoding.word_ids]
        starts = [before is None or before != word for before, word in pairwise(words)]
        if _HAN.search(text):
            begins = {begin for _, begin, _ in _segmenter().tokenize(text)}
            for number, (begin, end) in enumerate(encoding.offsets):
                # A piece of several characters may be several words to the segmenter, but cannot be divided.
                if _HAN.match(text[begin:end].lstrip()):
                    starts[number] = begin in begins
        return [True, *starts[1:]] if starts else []


def _segmenter() -> Any:
    try:
        import jieba
    except ImportError as error:
        rule, remedy = "be installed to tell the words of Chinese texts", "run `pip install 'tutti[pretraining]'`"
        raise BackboneError(Fault("jieba", rule, "no such package", remedy)) from error
    jieba.setLogLevel(logging.ERROR)
    return jieba
