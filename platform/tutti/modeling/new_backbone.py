"""Makes a small encoder from plain text files: a tokenizer trained on them, and randomly initialised weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tutti.errors import BackboneError, Fault
from tutti.files import nearest_file, new_folder_fault, whole_folder
from tutti.modeling.new_tokenizer import TokenizerKind, train_tokenizer

Size = Literal["tiny", "mini", "small"]
SMALLEST_VOCABULARY = 100
LONGEST_INPUT = 512  # tokens


@dataclass(frozen=True)
class Shape:
    """The layers, hidden width and attention heads of a size. The feed-forward layer is 4 times as wide."""

    layers: int
    hidden: int
    heads: int


# Tiny and mini follow Turc et al. 2019 (arXiv 1908.08962), small follows MiniLM-L6 (arXiv 2002.10957), each with
# attention heads of 64 dimensions. With the default vocabulary of 6,000 they have 1.2, 4.8 and 13 million weights.
SIZES: dict[str, Shape] = {
    "tiny": Shape(layers=2, hidden=128, heads=2),
    "mini": Shape(layers=4, hidden=256, heads=4),
    "small": Shape(layers=6, hidden=384, heads=6),
}


@dataclass(frozen=True)
class NewBackbone:
    """The new backbone: its folder, its size, its number of weights, and its vocabulary size."""

    path: Path
    size: str
    weights: int
    vocabulary: int


def new_backbone(
    *,
    texts: Sequence[Path],
    size: Size,
    out: Path,
    tokenizer: TokenizerKind = "wordpiece",
    vocabulary: int = 6_000,
) -> NewBackbone:
    """Trains a tokenizer on ``texts`` and saves it to ``out`` with a randomly initialised BERT encoder.

    Every line of a file is text, and tabs count as white space, so task files can be used unchanged. The same files
    and options give the same folder.

    Args:
        texts: UTF-8 text files, at least one.
        out: the folder to create; ``AutoModel`` and ``AutoTokenizer`` load it.
        tokenizer: see ``train_tokenizer``.
        vocabulary: maximum vocabulary size, at least ``SMALLEST_VOCABULARY``; small texts give a smaller one.

    Raises:
        BackboneError: if a text file is missing or not UTF-8, all files are empty, or ``out`` is not empty or cannot
            be replaced.
        StorageError: if the folder cannot be written.
    """
    _check(texts, out)

    import torch
    from transformers import BertConfig, BertModel

    from tutti.modeling.checkpoint import tensor_faults
    from tutti.modeling.model import no_progress_bars

    trained = train_tokenizer(_lines(texts), kind=tokenizer, vocabulary=vocabulary, longest_input=LONGEST_INPUT)
    shape = SIZES[size]
    config = BertConfig(
        vocab_size=len(trained),
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden,
        max_position_embeddings=LONGEST_INPUT,
        pad_token_id=trained.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertModel(config)
    with tensor_faults(out), whole_folder(out) as folder, no_progress_bars():
        model.save_pretrained(folder)
        trained.save_pretrained(folder)
    return NewBackbone(path=out, size=size, weights=model.num_parameters(), vocabulary=len(trained))


def _check(texts: Sequence[Path], out: Path) -> None:
    faults = [fault for fault in (new_folder_fault(out), *map(_text_fault, texts)) if fault]
    if not faults and not any(line.strip() for line in _lines(texts)):
        remedy = "name files with text in them"
        faults.append(Fault("the texts", "hold some text", "empty files", remedy))
    if faults:
        raise BackboneError(*faults)


def _text_fault(path: Path) -> Fault | None:
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no such file"
        return Fault(str(path), "be a text file", got, nearest_file(path, otherwise="correct the path"))
    try:
        for _ in _lines([path]):
            pass
    except UnicodeDecodeError as error:
        got = f"a byte that is not ({error.reason})"
        return Fault(str(path), "be UTF-8 text", got, "save the file as UTF-8 or leave it out")
    except OSError as error:
        return Fault(str(path), "be readable", error.strerror or str(error), "check the file's permissions")
    return None


def _lines(texts: Sequence[Path]) -> Iterator[str]:
    for path in texts:
        with path.open(encoding="utf-8-sig") as file:
            yield from file
