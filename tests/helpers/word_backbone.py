"""A random BERT and a tokenizer of whole words, small enough to be made anew for a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def save_tokenizer(folder: Path, words: Sequence[str], **options: Any) -> None:
    """Saves a tokenizer of these words, after BERT's special tokens; pairs are set apart as BERT does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        **options,
    ).save_pretrained(folder)


def save_bert(folder: Path, *, rows: int = 64, **options: Any) -> None:
    """Saves a BERT of 64 words with random weights, the same ones each time.

    Args:
        rows: of the table of embeddings, of which words use the first 64.
        options: of its configuration.
    """
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    encoder = BertModel(BertConfig(vocab_size=64, **{**small, **options}), add_pooling_layer=False)
    if rows != 64:
        encoder.resize_token_embeddings(rows, mean_resizing=False)
    encoder.save_pretrained(folder)


def save_deberta(folder: Path) -> None:
    """Saves a DeBERTa of 64 words, of the first version, which fails in bf16; replaces another encoder's weights."""
    from transformers import DebertaConfig, DebertaModel

    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    DebertaModel(DebertaConfig(vocab_size=64, **small)).save_pretrained(folder)
