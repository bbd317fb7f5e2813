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


DECODER_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
_KINDS: dict[str, dict[str, Any]] = {  # what a configuration needs beside the sizes to be tiny
    "llama": {"num_key_value_heads": 2},
    "qwen2": {"num_key_value_heads": 1},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 16},
    "gemma2": {"num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3_text": {"num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "mistral": {"num_key_value_heads": 1, "sliding_window": 8, "head_dim": 16},
    "phi3": {"num_key_value_heads": 2, "original_max_position_embeddings": 128},
    "gpt2": {"n_inner": 48},
    "modernbert": {"local_attention": 8, "cls_token_id": 1, "sep_token_id": 2},
}


def save_decoder(
    folder: Path,
    kind: str = "llama",
    *,
    words: int = 60,
    further: Sequence[str] = (),
    tied: bool | None = None,
    **tokens: str | None,
) -> None:
    """Saves a decoder of a kind with its language-model head, of 64 words with random weights, and its tokenizer,
    which puts ``<s>`` in front and knows ``w0``, ``w1`` and so on. The same ones each time.

    Args:
        further: words in place of the last ones.
        tied: whether the language-model head is the table of embeddings; by default but for phi3.
        tokens: the tokenizer's special tokens, in place of ``<pad>``, ``<s>`` and ``</s>``; None for none.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedTokenizerFast

    every = [*DECODER_SPECIAL, *(f"w{each}" for each in range(words - len(further))), *further]
    vocabulary = {word: number for number, word in enumerate(every)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", **tokens}
    inputs = ["input_ids", "attention_mask"]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=inputs,
        **{name: token for name, token in named.items() if token is not None},
    ).save_pretrained(folder)
    torch.manual_seed(0)
    special = {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": kind != "phi3" if tied is None else tied,
    }
    config = AutoConfig.for_model(kind, **_SIZES, **_KINDS[kind], **special)
    auto = AutoModelForMaskedLM if kind == "modernbert" else AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
