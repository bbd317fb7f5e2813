from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tutti.tasks.task import Task


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT with a word-level tokenizer, saved to a folder."""
    folder = tmp_path_factory.mktemp("backbone")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(60))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture
def tasks() -> tuple[Task, ...]:
    return (
        Task(name="news.v1", class_names=("100", "101", "102"), pair=False, metric="macro_f1", submission="csv"),
        Task(name="keys", class_names=("no", "yes"), pair=False, metric="accuracy", submission="csv"),
    )
