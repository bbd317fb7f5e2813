"""Bad input in the backbone and the settings."""

from __future__ import annotations

from collections.abc import Sequence

from bad_input_changes import (
    Case,
    both,
    damaged,
    other_model,
    own_backbone,
    space,
    training,
    weights,
    yaml,
)

SMALL_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
SMALL_ALBERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SMALL_DEBERTA = {**SMALL_ALBERT, "relative_attention": True, "pos_att_type": ["c2p"]}
SMALL_SQUEEZEBERT = {**SMALL_ALBERT, "embedding_size": 16}
SMALL_ROBERTA = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 66, "pad_token_id": 1,
}  # fmt: skip

SETTINGS: dict[str, Sequence[Case]] = {
    "The study's score": (
        Case(
            "a weight of a task that the study does not have",
            ["objective_weights.moods must name a task of the study", "did you mean 'mood'"],
            weights("{moods: 2}"),
        ),
        Case(
            "a task counts less than nothing",
            ["objective_weights.mood must be at least 0; got -1"],
            weights("{mood: -1}"),
        ),
        Case(
            "a task counts without end",
            ["objective_weights.mood must be a finite number"],
            weights("{mood: .inf}"),
        ),
        Case(
            "a weight is a text",
            ["objective_weights.mood must be a number; got 'two'"],
            weights("{mood: two}"),
        ),
        Case(
            "no task counts",
            ["objective_weights must be above 0 for a task at least", "got 0 for every task"],
            weights("{mood: 0}"),
        ),
    ),
    "The backbone": (
        Case(
            "the backbone's folder is not there",
            ["study.yaml: backbone", "'./backbon'", "did you mean 'backbone'"],
            yaml("backbone: backbone", "backbone: ./backbon"),
        ),
        Case(
            "the backbone is not on the hub, or the hub is away",
            ["nobody/no-such-model", "got no such folder, and ", "make or name the folder"],
            yaml("backbone: backbone", "backbone: nobody/no-such-model"),
        ),
        Case(
            "the backbone's folder has no config.json",
            ["a folder with a config.json"],
            own_backbone(lambda folder: (folder / "config.json").unlink()),
        ),
        Case(
            "the backbone's folder has no tokenizer",
            ["have a vocabulary", "tokenizer.json"],
            own_backbone(lambda folder: [file.unlink() for file in folder.glob("tokenizer*")]),
        ),
        Case(
            "the backbone's weights are damaged",
            ["hold weights that can be read", "copy or download"],
            own_backbone(damaged),
        ),
        Case(
            "the backbone's weights are missing",
            ["model.safetensors"],
            own_backbone(lambda folder: (folder / "model.safetensors").unlink()),
        ),
        Case(
            "the backbone is an encoder-decoder",
            ["be a text encoder, such as BERT", "'t5'"],
            other_model("t5", **SMALL_T5),
        ),
        Case(
            "the backbone has fewer embeddings than its tokenizer has tokens, and rows with the others",
            ["must give tokens below 20", "in row", "of train of the task mood", "put back the tokenizer"],
            other_model("roberta", **SMALL_ROBERTA, vocab_size=20),
        ),
        Case(
            "`max_length` beyond its positions",
            ["training.max_length must be at most 512", "600"],
            yaml("max_length: 16", "max_length: 600"),
        ),
        Case(
            "`max_length` beyond those of a RoBERTa, which sets two apart",
            ["at most 64", "got 65"],
            both(other_model("roberta", **SMALL_ROBERTA), yaml("max_length: 16", "max_length: 65")),
        ),
        Case(
            "`activation_checkpointing` of an ALBERT",
            ["training.activation_checkpointing must be false for the backbone", "cannot compute its activations anew"],
            both(other_model("albert", **SMALL_ALBERT), training("activation_checkpointing: true")),
        ),
        Case(
            "`mixout` of a SqueezeBERT",
            ["training.mixout must be 0 for the backbone", "whose layers hold no linear layers"],
            both(other_model("squeezebert", **SMALL_SQUEEZEBERT), training("mixout: 0.5")),
        ),
        Case(
            "`bf16` of a DeBERTa of the first version",
            ["training.bf16 must be false for the backbone", "which can be computed in float32 alone"],
            both(other_model("deberta", **SMALL_DEBERTA), training("bf16: true")),
        ),
        Case(
            "a search space goes beyond them",
            ["search_space.max_length must be at most 512", "1024"],
            space("max_length: {type: categorical, choices: [128, 1024]}"),
        ),
    ),
    "Training and search": (
        Case(
            "a training key is unknown",
            ["training.learning_rat ", "did you mean 'learning_rate'"],
            training("learning_rat: 1.0e-4"),
        ),
        Case(
            "a training key that Tutti sets itself",
            ["training.output_dir must not be set: every trial has a folder of its own"],
            training("output_dir: out"),
        ),
        Case(
            "a training value of the wrong type",
            ["training.learning_rate must be a number", "'fast'"],
            training("learning_rate: fast"),
        ),
        Case(
            "a training value out of range", ["training.ema_decay must be below 1", "got 1"], training("ema_decay: 1.0")
        ),
        Case(
            "`bf16` and `fp16` together",
            ["training", "bf16", "fp16"],
            both(training("bf16: true"), training("fp16: true")),
        ),
        Case(
            "`fp16` where no worker has a GPU",
            ["training.fp16 must be left out where resources.gpus_per_worker is 0"],
            training("fp16: true"),
        ),
        Case(
            "`bits` without an adapter",
            ["have an adapter where bits is set: quantised weights cannot be trained"],
            training("bits: 4"),
        ),
        Case(
            "a search space by an unknown name",
            ["base_large, lora, minute, qlora, small", "'minutes'", "did you mean 'minute'"],
            yaml(
                "search_space:\n  learning_rate: {type: log_uniform, low: 1.0e-4, high: 1.0e-3}\n",
                "search_space: minutes\n",
            ),
        ),
        Case(
            "a search space of an unknown key",
            ["search_space.learningrate", "did you mean 'learning_rate'"],
            space("learningrate: {type: uniform, low: 0.1, high: 0.2}"),
        ),
        Case(
            "`low` above `high`",
            ["search_space.weight_decay must have low below high", "low 0.3 and high 0.1"],
            space("weight_decay: {type: uniform, low: 0.3, high: 0.1}"),
        ),
        Case(
            "a distribution of an unknown type",
            ["search_space.learning_rate.type", "uniform, log_uniform, int, categorical", "did you mean 'log_uniform'"],
            space("learning_rate: {type: loguniform, low: 1.0e-4, high: 1.0e-3}"),
        ),
        Case(
            "a distribution without a type",
            ["search_space.learning_rate", "add `type:`"],
            space("learning_rate: {low: 1.0e-4, high: 1.0e-3}"),
        ),
        Case(
            "a search space outside of what TrainingArguments take",
            ["search_space.lr_scheduler_type", "'liner'", "did you mean 'linear'"],
            space("lr_scheduler_type: {type: categorical, choices: [liner, cosine]}"),
        ),
        Case(
            "a distribution of floats for a key of whole numbers",
            ["search_space.max_length.type must be int or categorical", "'log_uniform'", "write `type: int`"],
            space("max_length: {type: log_uniform, low: 8, high: 16}"),
        ),
        Case(
            "a range whose end is no value of its key",
            ["search_space.label_smoothing_factor.high must be below 1", "1.5"],
            space("label_smoothing_factor: {type: uniform, low: 0.0, high: 1.5}"),
        ),
    ),
}
