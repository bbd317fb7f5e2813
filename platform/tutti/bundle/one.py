"""One checkpoint as a plain model of transformers, or as ONNX."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tutti.bundle.onnx_model import FILE, OnnxModel, check_onnx, write_onnx
from tutti.bundle.write import portable
from tutti.data.batches import TokenRows
from tutti.data.encode import load_tokenizer
from tutti.data.flat_rows import TokenizedRows
from tutti.data.tokenized import tokenized
from tutti.modeling.merge import merged_model
from tutti.modeling.model import MultiTaskModel
from tutti.modeling.plain import check_equal, plain_model
from tutti.records import TextLimit
from tutti.tasks.task import Task

_BATCH = 8

_PIPELINES = {
    "token-classification": 'pipeline("token-classification", FOLDER, aggregation_strategy="first")(text)',
    "multiple-choice": "AutoModelForMultipleChoice.from_pretrained(FOLDER)",
    "text-classification": 'pipeline("text-classification", FOLDER, top_k=None)(text)',
}


@dataclass(frozen=True)
class Said:
    """What was written, for the console and for README.md.

    Attributes:
        seconds: that all rows took.
        difference: the greatest one from Tutti's own outputs.
    """

    text: str
    page: str
    seconds: float
    difference: float


def export_plain(folder: Path, checkpoint: Path, task: Task, texts: Mapping[str, Sequence[str]]) -> Said:
    """Writes a plain model of transformers, after its outputs were found equal to Tutti's own on these texts.

    Raises:
        StudyError: if no class of transformers has the head, with the reason.
    """
    model, metadata = merged_model(checkpoint, portable(task))
    plain = plain_model(model, metadata.limit)
    tokenizer = load_tokenizer(str(checkpoint))
    began = time.perf_counter()
    apart = max(check_equal(model, plain, batch) for batch in _batches(model, task, tokenizer, metadata.limit, texts))
    seconds = (time.perf_counter() - began) / 2
    plain.save_pretrained(folder)
    tokenizer.model_max_length = metadata.limit.max_length
    tokenizer.save_pretrained(folder)
    sort = "token-classification" if task.kind.sequential else "text-classification"
    sort = "multiple-choice" if task.kind.exchangeable else sort
    page = (
        f"A `{type(plain).__name__}` of transformers: `{_PIPELINES[sort]}`. It takes texts as they were in training, "
        f"cleaned and composed, and cuts them at {metadata.limit.max_length} tokens (`truncation=True`).\n"
    )
    name = type(plain).__name__
    return Said(f"a {name}, whose values differ from Tutti's by {apart:.2g} at most", page, seconds, apart)


def export_onnx(folder: Path, checkpoint: Path, task: Task, texts: Mapping[str, Sequence[str]]) -> Said:
    """Writes an ONNX file beside the tokenizer, and compares outputs and speed on these texts.

    Raises:
        StudyError: if packages are missing, or a row is no single input.
    """
    model, metadata = merged_model(checkpoint, portable(task))
    check_onnx(model, metadata.limit)
    tokenizer = load_tokenizer(str(checkpoint))
    batches = list(_batches(model, task, tokenizer, metadata.limit, texts))
    write_onnx(folder / FILE, model, batches[0])
    tokenizer.save_pretrained(folder)
    model.encoder.config.save_pretrained(folder)
    apart, seconds, own = OnnxModel(folder / FILE).compared(model, batches)
    rows = len(texts["text"])
    page = (
        f"`{FILE}` for onnxruntime: tokens, as `AutoTokenizer.from_pretrained(FOLDER)` gives them, to the outputs "
        f"{', '.join(task.names) or 'value'}. It takes texts as they were in training, cleaned and composed, of "
        f"{metadata.limit.max_length} tokens at most.\n"
    )
    text = (
        f"ONNX, {rows / seconds:.0f} rows a second ({rows / own:.0f} of torch), whose values differ from Tutti's by "
        f"{apart:.2g} at most"
    )
    return Said(text, page, seconds, apart)


def _batches(
    model: MultiTaskModel, task: Task, tokenizer: Any, limit: TextLimit, texts: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, torch.Tensor]]:
    """Padded batches of rows of similar length, the longest first."""
    rows = TokenizedRows(tokenized(texts, tokenizer, task.limit(limit)), tokenizer.pad_token_id)
    tokens = TokenRows(rows, positions=model.positions)
    order = np.argsort(-rows.lengths.astype(np.int64), kind="stable")
    for start in range(0, len(order), _BATCH):
        yield tokens.pad(order[start : start + _BATCH])
