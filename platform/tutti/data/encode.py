"""Tokenization: each text is encoded once, into a memory-mapped Arrow table that all trials read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutti.data.encoding_key import state_of, table_key
from tutti.data.flat_rows import ListColumns
from tutti.data.prepared import REPORTED, Prepared, read_columns
from tutti.data.prompts import (
    SCHEMA,
    check_answers,
    encoded_prompts,
    prompt_key,
    question_limit,
    with_target_places,
)
from tutti.data.special_tokens import padding_token
from tutti.data.tokenized import column_names, tokenized
from tutti.errors import BackboneError, Fault, StorageError, first_line
from tutti.files import whole_folder, write_whole
from tutti.records import TextLimit
from tutti.tasks.kinds.columns import as_targets, label_array
from tutti.tasks.layouts.tags import piece_of

if TYPE_CHECKING:
    from datasets import Dataset

    from tutti.tasks.task import Task

_BATCH = 1000  # rows that are tokenized and written at a time
_ATTEMPTS = 5
_TABLE, _INFO = "encoded.arrow", "info.json"


@dataclass(frozen=True, eq=False)
class EncodedPart(ListColumns):
    """One part of one task, encoded. Index i is the same row in all attributes.

    Attributes:
        ids: ``(rows,)`` of str.
        encoded: columns input_ids (list of int32), token_type_ids (only if the tokenizer has them), length (int32), of
            prompts source (int32), the number of their tokens without those of the target, and
            where long rows have windows, or rows candidates, one after another in these lists, windows (list of int32):
            their lengths; of prompts with all candidates of a row candidates, a list of their number; of rows with tags
            ``PLACES``.
        lengths: ``(rows,)`` int32, number of tokens of each row, those of all of its windows.
        labels: ``(rows,)`` int64 class indices, float32 values or texts, ``(rows, k)`` float32 or tags, or None.
        weights: ``(rows,)`` float32, weight of each row in the loss; 1 in all parts but train. Of texts to be written
            times their number of tokens, and of rows with tags times that of known ones, so that all count the same.
        pad_token_id: pads the shorter rows of a batch.
        targets: ``(rows, classes)`` float32 probabilities to learn (``labels`` are then the most likely classes); of
            texts to be written ``(rows,)`` int64, the place of the first token that is learnt; otherwise None.
        swapped: the pairs in the other order, to be predicted too; None where one order is enough.
        answers: ``(rows,)`` of validation rows with at most one marked piece: pairs of the text, and a list of all
            right answers; None for other parts.
        most_units: of rows with tags: that of the longest row of the part, of whose rows this may have some.
        groups: ``(rows,)`` of str, of questions, such as their subjects; None for other parts.
    """

    ids: np.ndarray
    encoded: Dataset
    lengths: np.ndarray
    labels: np.ndarray | None
    weights: np.ndarray
    pad_token_id: int
    targets: np.ndarray | None = None
    swapped: EncodedPart | None = None
    groups: np.ndarray | None = None
    most_units: int = 0
    answers: np.ndarray | None = None

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        if name not in self.encoded.column_names:
            return None
        chunks = self.encoded.with_format("arrow")[:].column(name).chunks
        values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in chunks]
        lengths = [chunk.value_lengths().to_numpy(zero_copy_only=False) for chunk in chunks]
        starts = np.concatenate([[0], *lengths]).cumsum(dtype=np.int64)
        return np.concatenate([np.empty(0, dtype=np.int32), *values]), starts

    def highest(self, column: str) -> int:
        """The highest value in a column of lists, such as ``input_ids``; -1 without any."""
        if column not in self.encoded.column_names:
            return -1
        values = pc.list_flatten(self.encoded.with_format("arrow")[:][column])
        return int(pc.max(values).as_py()) if len(values) else -1


def take(part: EncodedPart, rows: np.ndarray) -> EncodedPart:
    """The rows of a part at the indices ``rows``, in this order, read into memory."""
    from datasets import Dataset  # slow to import

    # Dataset.select would leave one Arrow chunk per row, and reading is chunk by chunk.
    encoded = part.encoded.with_format("arrow")[:].take(pa.array(rows))
    return replace(
        part,
        ids=part.ids[rows],
        encoded=Dataset(encoded),
        lengths=part.lengths[rows],
        labels=None if part.labels is None else part.labels[rows],
        weights=part.weights[rows],
        targets=None if part.targets is None else part.targets[rows],
        swapped=None if part.swapped is None else take(part.swapped, rows),
        answers=None if part.answers is None else part.answers[rows],
    )


def load_parts(
    prepared: Prepared, *, tokenizer: str, limit: TextLimit, cache: Path
) -> dict[str, dict[str, EncodedPart]]:
    """Every task's parts with their encoded texts; encodes those that the cache lacks.

    The tokenizer is loaded and hashed once for all parts, since that dominates the time if all parts are cached.

    Raises:
        BackboneError: if the tokenizer cannot be loaded, is empty, or has no padding token.
        StorageError: if a part is damaged or the cache cannot be written.
    """
    loaded = load_tokenizer(tokenizer)
    state = state_of(loaded)
    return {
        task: {
            part: _load(prepared, task, part, tokenizer=loaded, state=state, limit=limit, cache=cache) for part in parts
        }
        for task, parts in prepared.parts.items()
    }


def _load(
    prepared: Prepared, task: str, part: str, *, tokenizer: Any, state: bytes, limit: TextLimit, cache: Path
) -> EncodedPart:
    info = prepared.parts[task][part]
    own = next(each for each in prepared.tasks if each.name == task)
    generation, limit, reported = own.generation, own.limit(limit), part.startswith(REPORTED)
    if generation is not None and reported:
        limit = question_limit(limit, longest=tokenizer.model_max_length)
    folder = cache / table_key(info.texts_sha256, tokenizer, limit, state)
    chat = None if generation is None else generation.chat
    if generation is not None:
        folder = folder.with_name(f"{folder.name}-{prompt_key(tokenizer, limit, chat=generation.chat)}")
    encoded = _encode(info.path, folder, tokenizer, limit, chat=chat)
    swaps = own.swaps(limit) and part != "train"
    optional = {"label": info.labelled, "weight": part == "train", "probabilities": info.soft}
    names = ["id", *(name for name, present in optional.items() if present), *["group"] * reported]
    table = read_columns(info.path, names)
    if len(encoded) != table.num_rows:
        got, remedy = f"{table.num_rows} rows", f"remove the folder {prepared.folder} and run `tutti tune` again"
        raise StorageError(Fault(str(info.path), f"have the {len(encoded)} rows it was encoded with", got, remedy))
    loaded = EncodedPart(
        ids=np.array(table["id"].to_pylist(), dtype=np.str_),
        encoded=encoded,
        lengths=np.array(encoded.data.column("length")),
        labels=np.array(label_array(table["label"])) if info.labelled else None,
        weights=np.array(table["weight"].to_numpy()) if part == "train" else np.ones(table.num_rows, dtype=np.float32),
        pad_token_id=tokenizer.pad_token_id,
        targets=_targets(table) if info.soft else None,
        groups=np.array(table["group"].to_pylist(), dtype=object) if reported else None,
    )
    if generation is not None:
        loaded = with_target_places(loaded, from_start=limit.train_on_source and part == "train")
        if reported:
            check_answers(loaded, where=f"{part.removeprefix(REPORTED)} of the task {task}")
        return loaded
    if loaded.units is not None:
        answers = _answers(own, info.path, loaded.labels) if part != "train" else None
        return _with_tags(replace(loaded, answers=answers))
    if not swaps:
        return loaded
    encoded = _encode(info.path, folder.with_name(f"{folder.name}-swapped"), tokenizer, limit, swaps=True)
    return replace(loaded, swapped=replace(loaded, encoded=encoded, lengths=np.array(encoded.data.column("length"))))


def _answers(task: Task, path: Path, labels: np.ndarray | None) -> np.ndarray | None:
    """As of ``EncodedPart``: a row's right answers are those of its file, or the piece that its label marks."""
    if task.kind.spans != "one" or labels is None:
        return None
    rows = read_columns(path, None).to_pylist()
    answers = np.empty(len(rows), dtype=object)
    for number, (row, cell) in enumerate(zip(rows, task.kind.cells(labels, task.names), strict=True)):
        kept = row.get("answers")
        own = json.loads(kept) if isinstance(kept, str) else [piece_of(row["text"], task.unit, cell)]
        answers[number] = (row["text"], own)
    return answers


def _with_tags(part: EncodedPart) -> EncodedPart:
    """A part of rows whose words or characters have tags, as ``EncodedPart`` says of them."""
    assert part.units is not None
    known = 1 if part.labels is None else (part.labels >= 0).sum(axis=1, dtype=np.float32)
    return replace(part, most_units=int(np.diff(part.units[1]).max(initial=1)), weights=part.weights * known)


def _targets(table: pa.Table) -> np.ndarray:
    """``(rows, outputs)`` float32: a row's probabilities, or 0 and 1 by its label or labels."""
    column = table["probabilities"].combine_chunks()
    soft_rows = np.flatnonzero(np.array(column.is_valid()))
    probabilities = column.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(len(soft_rows), -1)
    targets = as_targets(label_array(table["label"]), probabilities.shape[1])
    targets[soft_rows] = probabilities
    return targets


def _encode(
    path: Path, folder: Path, tokenizer: Any, limit: TextLimit, *, swaps: bool = False, chat: bool | None = None
) -> Dataset:
    """The encoded texts of a part, memory-mapped; see ``EncodedPart.encoded``.

    Each (texts, tokenizer, limit) is encoded once for all studies. Concurrent processes may encode the same part;
    one result is kept.

    Args:
        path: the part's Parquet file.
        folder: the table's folder, in a cache shared by all studies.
        tokenizer: from ``load_tokenizer``.
        limit: of a row's tokens. Too long pairs are truncated at the longer text.
        swaps: whether the two texts of each pair change places.
        chat: of prompts, whether they are messages; None for other texts.

    Raises:
        StorageError: if the part is damaged or the cache cannot be written.
    """
    from datasets import Dataset  # slow to import

    for _ in range(_ATTEMPTS):
        if not _is_complete(folder):
            try:
                with whole_folder(folder, unless=lambda: _is_complete(folder)) as temporary:
                    _write_files(temporary, path, tokenizer, limit, swaps, chat)
            except StorageError:
                if not _is_complete(folder):  # by another process
                    raise
        with suppress(FileNotFoundError):  # another process is replacing the folder by its own, equal table
            return Dataset.from_file(str(folder / _TABLE))
    remedy = "check whether something else removes files there"
    raise StorageError(Fault(str(folder), "stay there once it is written", "a folder that is gone", remedy))


def load_tokenizer(tokenizer: str) -> Any:
    """The tokenizer of a backbone, given by folder or hub id. Where it has no padding token, as many of decoders, it
    pads with another special token, the end of a text if it has that: no mask lets the padding be seen.

    Raises:
        BackboneError: if it does not load, or has no vocabulary, or no special token at all.
    """
    from transformers import AutoTokenizer  # slow to import

    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        remedy = "name a folder or hub id that has a tokenizer"
        what = f"the tokenizer of {tokenizer}"
        raise BackboneError(Fault(what, "be loadable", first_line(error), remedy)) from error
    if len(loaded) <= len(loaded.all_special_tokens):  # transformers returns an empty one if its files are missing
        remedy = "put the tokenizer's files (tokenizer.json, tokenizer_config.json) beside config.json"
        raise BackboneError(Fault(f"the tokenizer of {tokenizer}", "have a vocabulary", "an empty one", remedy))
    if (pad := padding_token(loaded, tokenizer)) is None:
        remedy = "set one in its tokenizer_config.json"
        raise BackboneError(Fault(f"the tokenizer of {tokenizer}", "have a padding token", "none", remedy))
    if pad != loaded.pad_token:
        loaded.pad_token = pad
    return loaded


def _is_complete(folder: Path) -> bool:
    try:
        info = json.loads((folder / _INFO).read_text())
        return (folder / _TABLE).stat().st_size == info["bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def encode_rows(texts: pa.Table, *, tokenizer: Any, limit: TextLimit) -> pa.Table:
    """The columns of ``EncodedPart.encoded`` for these texts, in order.

    Args:
        texts: columns text, for pairs text_b, and where rows have candidates choices.
        tokenizer: from ``load_tokenizer``.
        limit: of a row's tokens. Too long pairs are truncated at the longer text.
    """
    return pa.Table.from_batches(_encoded(texts, tokenizer, limit), schema=_schema(texts, tokenizer, limit))


def part_of(ids: np.ndarray, encoded: pa.Table, *, pad_token_id: int, swapped: pa.Table | None = None) -> EncodedPart:
    """A part without labels, from the result of ``encode_rows``, and that of the texts ``swapped``."""
    from datasets import Dataset  # slow to import

    part = EncodedPart(
        swapped=None if swapped is None else part_of(ids, swapped, pad_token_id=pad_token_id),
        ids=ids,
        encoded=Dataset(encoded),
        lengths=encoded["length"].to_numpy(),
        labels=None,
        weights=np.ones(len(ids), dtype=np.float32),
        pad_token_id=pad_token_id,
    )
    return part if part.units is None else _with_tags(part)


def _schema(texts: pa.Table, tokenizer: Any, limit: TextLimit) -> pa.Schema:
    *lists, length = column_names(texts.column_names, tokenizer, limit)
    return pa.schema([*((name, pa.list_(pa.int32())) for name in lists), (length, pa.int32())])


def swapped(texts: pa.Table) -> pa.Table:
    """The texts of pairs with the second one first."""
    return pa.table({"text": texts["text_b"], "text_b": texts["text"]})


def _write_files(folder: Path, path: Path, tokenizer: Any, limit: TextLimit, swaps: bool, chat: bool | None) -> None:
    texts = read_columns(path, None)
    schema = _schema(texts, tokenizer, limit) if chat is None else SCHEMA
    texts = swapped(texts) if swaps else texts
    batches = _encoded(texts, tokenizer, limit)
    if chat is not None:
        batches = encoded_prompts(texts, tokenizer, limit, chat=chat, rows=_BATCH)
    with pa.OSFile(str(folder / _TABLE), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    write_whole(folder / _INFO, json.dumps({"rows": texts.num_rows, "bytes": (folder / _TABLE).stat().st_size}))


def _encoded(texts: pa.Table, tokenizer: Any, limit: TextLimit) -> Iterator[pa.RecordBatch]:
    schema = _schema(texts, tokenizer, limit)
    for start in range(0, texts.num_rows, _BATCH):
        rows = tokenized(texts.slice(start, _BATCH).to_pydict(), tokenizer, limit)
        yield pa.record_batch([pa.array(rows[field.name], field.type) for field in schema], schema=schema)
