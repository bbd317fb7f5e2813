"""Encoders with random weights for benchmarks: one of BERT-base's size, and a toy."""

from __future__ import annotations

from pathlib import Path

import shared
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast


def base_backbone(folder: Path) -> str:
    """An encoder of BERT-base's shape (12 layers, 768 wide, 109 million weights), random, with MiniLM's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(shared.BACKBONE)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer)), add_pooling_layer=False).save_pretrained(folder)
    return str(folder)


def toy_backbone(folder: Path) -> str:
    """A BERT with 40 thousand random weights and a tokenizer of 60 words."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(60))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return str(folder)
