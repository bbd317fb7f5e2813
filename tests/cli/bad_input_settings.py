"""Bad input in the backbone and the settings."""

from __future__ import annotations

from collections.abc import Sequence

from bad_input_changes import Case, both, damaged, other_model, own_backbone, space, training, weights, yaml

SMALL_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
SMALL_ALBERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SMALL_DEBERTA = {**SMALL_ALBERT, "relative_attention": True, "pos_att_type": ["c2p"]}
SMALL_ROBERTA = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 66, "pad_token_id": 1,
}  # fmt: skip

SETTINGS: dict[str, Sequence[Case]] = {
    "The study's score": (
        Case("a weight of a task that the study does not have", weights("{moods: 2}")),
        Case("a task counts less than nothing", weights("{mood: -1}")),
        Case("no task counts", weights("{mood: 0}")),
    ),
    "The backbone": (
        Case("the backbone's folder is not there", yaml("backbone: backbone", "backbone: ./backbon")),
        Case(
            "the backbone is not on the hub, or the hub is away",
            yaml("backbone: backbone", "backbone: nobody/no-such-model"),
        ),
        Case(
            "the backbone's folder has no config.json", own_backbone(lambda folder: (folder / "config.json").unlink())
        ),
        Case(
            "the backbone's folder has no tokenizer",
            own_backbone(lambda folder: [file.unlink() for file in folder.glob("tokenizer*")]),
        ),
        Case("the backbone's weights are damaged", own_backbone(damaged)),
        Case(
            "the backbone's weights are missing", own_backbone(lambda folder: (folder / "model.safetensors").unlink())
        ),
        Case("the backbone is an encoder-decoder", other_model("t5", **SMALL_T5)),
        Case(
            "the backbone has fewer embeddings than its tokenizer has tokens, and rows with the others",
            other_model("roberta", **SMALL_ROBERTA, vocab_size=20),
        ),
        Case("`max_length` beyond its positions", yaml("max_length: 16", "max_length: 600")),
        Case(
            "`activation_checkpointing` of an ALBERT",
            both(other_model("albert", **SMALL_ALBERT), training("activation_checkpointing: true")),
        ),
        Case(
            "packed rows of a DeBERTa, whose attention is of a kind of its own",
            both(other_model("deberta", **SMALL_DEBERTA), training("batching: packed")),
        ),
        Case(
            "packed rows, some of which are several windows",
            both(training("batching: packed"), training("truncation: windows")),
        ),
        Case("a search space goes beyond them", space("max_length: {type: categorical, choices: [128, 1024]}")),
    ),
    "Training and search": (
        Case("a training key is unknown", training("learning_rat: 1.0e-4")),
        Case("a training key that Tutti sets itself", training("output_dir: out")),
        Case("a training value of the wrong type", training("learning_rate: fast")),
        Case("a training value out of range", training("ema_decay: 1.0")),
        Case("`bf16` and `fp16` together", both(training("bf16: true"), training("fp16: true"))),
        Case("`bits` without an adapter", training("bits: 4")),
        Case(
            "a search space by an unknown name",
            yaml(
                "search_space:\n  learning_rate: {type: log_uniform, low: 1.0e-4, high: 1.0e-3}\n",
                "search_space: minutes\n",
            ),
        ),
        Case("a search space of an unknown key", space("learningrate: {type: uniform, low: 0.1, high: 0.2}")),
        Case("`low` above `high`", space("weight_decay: {type: uniform, low: 0.3, high: 0.1}")),
        Case(
            "a distribution of an unknown type", space("learning_rate: {type: loguniform, low: 1.0e-4, high: 1.0e-3}")
        ),
        Case("a distribution without a type", space("learning_rate: {low: 1.0e-4, high: 1.0e-3}")),
        Case(
            "a search space outside of what TrainingArguments take",
            space("lr_scheduler_type: {type: categorical, choices: [liner, cosine]}"),
        ),
        Case(
            "a distribution of floats for a key of whole numbers",
            space("max_length: {type: log_uniform, low: 8, high: 16}"),
        ),
        Case(
            "a range whose end is no value of its key",
            space("label_smoothing_factor: {type: uniform, low: 0.0, high: 1.5}"),
        ),
    ),
}
