"""Makes a small backbone from plain text files: a tokenizer trained on them, and randomly initialised weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tutti.errors import BackboneError, Fault
from tutti.files import nearest_file, new_folder_fault, whole_folder
from tutti.modeling.new_tokenizer import TokenizerKind, train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Size = Literal["tiny", "mini", "small", "electra-small", "electra-base", "electra-large"]
Architecture = Literal["encoder", "electra", "decoder"]
SMALLEST_VOCABULARY = 100
LONGEST_INPUT: dict[Architecture, int] = {"encoder": 512, "electra": 512, "decoder": 2048}  # tokens
_TOKENIZERS: dict[Architecture, tuple[TokenizerKind, ...]] = {  # the default first
    "encoder": ("wordpiece", "unigram"),
    "electra": ("wordpiece", "unigram"),
    "decoder": ("bytes",),
}


@dataclass(frozen=True)
class Shape:
    """The layers, hidden width and attention heads of a size. The feed-forward layer is 4 times as wide; a decoder's,
    which has three matrices in place of two, 8/3 times, so that sizes have about equal numbers of weights. ELECTRA's
    tables are as wide as ``embedding``, by default as ``hidden``.
    """

    layers: int
    hidden: int
    heads: int
    embedding: int | None = None


# Tiny and mini follow Turc et al. 2019 (arXiv 1908.08962), small follows MiniLM-L6 (arXiv 2002.10957), each with
# attention heads of 64 dimensions. With the default vocabulary of 6,000 they have 1.2, 4.8 and 13 million weights.
SIZES: dict[str, Shape] = {
    "tiny": Shape(layers=2, hidden=128, heads=2),
    "mini": Shape(layers=4, hidden=256, heads=4),
    "small": Shape(layers=6, hidden=384, heads=6),
    # Discriminators as published (arXiv 2003.10555).
    "electra-small": Shape(layers=12, hidden=256, heads=4, embedding=128),
    "electra-base": Shape(layers=12, hidden=768, heads=12),
    "electra-large": Shape(layers=24, hidden=1024, heads=16),
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
    architecture: Architecture = "encoder",
    tokenizer: TokenizerKind | None = None,
    vocabulary: int = 6_000,
) -> NewBackbone:
    """Trains a tokenizer on ``texts`` and saves it to ``out`` with a randomly initialised BERT encoder, an ELECTRA
    discriminator, or a Llama decoder with its language-model head, which shares the table of words.

    Every line of a file is text, and tabs count as white space, so task files can be used unchanged. The same files
    and options give the same folder.

    Args:
        texts: UTF-8 text files, at least one.
        out: the folder to create; ``AutoModel`` and ``AutoTokenizer`` load it.
        tokenizer: see ``train_tokenizer``; by default ``wordpiece``, of a decoder ``bytes``.
        vocabulary: maximum vocabulary size, at least ``SMALLEST_VOCABULARY``; small texts give a smaller one.

    Raises:
        BackboneError: if a text file is missing or not UTF-8, all files are empty, ``out`` is not empty or cannot be
            replaced, or the tokenizer or the size is not one for the architecture.
        StorageError: if the folder cannot be written.
    """
    kinds = _TOKENIZERS[architecture]
    kind = tokenizer or kinds[0]
    if kind not in kinds:
        rule, remedy = f"be {' or '.join(kinds)} for a new {architecture}", "leave it out"
        raise BackboneError(Fault("the tokenizer", rule, kind, remedy))
    if size.startswith("electra-") and architecture != "electra":
        raise BackboneError(
            Fault("--size", f"be tiny, mini or small for a new {architecture}", size, "name one of them")
        )
    _check(texts, out)

    import torch

    from tutti.modeling.checkpoint import tensor_faults
    from tutti.modeling.model import no_progress_bars

    longest = LONGEST_INPUT[architecture]
    trained = train_tokenizer(_lines(texts), kind=kind, vocabulary=vocabulary, longest_input=longest)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = {"encoder": _encoder, "electra": _electra, "decoder": _decoder}[architecture](trained, SIZES[size])
    with tensor_faults(out), whole_folder(out) as folder, no_progress_bars():
        model.save_pretrained(folder)
        trained.save_pretrained(folder)
    return NewBackbone(path=out, size=size, weights=model.num_parameters(), vocabulary=len(trained))


def _dimensions(tokenizer: Any, shape: Shape, architecture: Architecture) -> dict[str, Any]:
    """What the configurations of encoders have in common."""
    return {
        "vocab_size": len(tokenizer),
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "intermediate_size": 4 * shape.hidden,
        "max_position_embeddings": LONGEST_INPUT[architecture],
        "pad_token_id": tokenizer.pad_token_id,
    }


def _encoder(tokenizer: Any, shape: Shape) -> PreTrainedModel:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**_dimensions(tokenizer, shape, "encoder")))


def _electra(tokenizer: Any, shape: Shape) -> PreTrainedModel:
    from transformers import ElectraConfig, ElectraForPreTraining

    embedding = shape.embedding or shape.hidden
    return ElectraForPreTraining(ElectraConfig(embedding_size=embedding, **_dimensions(tokenizer, shape, "electra")))


def _decoder(tokenizer: Any, shape: Shape) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        intermediate_size=-(-8 * shape.hidden // 3 // 64) * 64,
        max_position_embeddings=LONGEST_INPUT["decoder"],
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


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
