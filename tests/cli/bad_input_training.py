"""Bad input under ``training:`` that a trial would pass over in silence, or would be the first to tell."""

from __future__ import annotations

from collections.abc import Sequence

from bad_input_changes import TUNE, Case, both, space, training, yaml

WORKERS = f"{TUNE} --set resources.workers=2"

TRAINING: dict[str, Sequence[Case]] = {
    "Training keys": (
        Case(
            "a training key by the name that it has elsewhere",
            ["training.lr must be an option of Tutti", "did you mean 'learning_rate'"],
            training("lr: 1.0e-4"),
        ),
        Case(
            "a key of TrainingArguments by its former name",
            ["training.evaluation_strategy must not be set: Tutti evaluates every task evals_per_epoch times"],
            training("evaluation_strategy: epoch"),
        ),
        Case(
            "a task's weight by a name in other letters",
            ["training.task_weights.Mood must name a task of the study", "did you mean 'mood'"],
            training("task_weights: {Mood: 2}"),
        ),
        Case(
            "weights are kept by something else than score and loss",
            ["training.best_by must be 'score' or 'loss'; got 'f1'"],
            training("best_by: f1"),
        ),
        Case(
            "trials of which some keep their weights by the loss",
            ["search_space.best_by must not vary", "set it below training:"],
            space("best_by: {type: categorical, choices: [score, loss]}"),
        ),
        Case(
            "a population that keeps weights by the loss",
            ["training.best_by must be left out with the scheduler pbt"],
            both(training("best_by: loss"), yaml("search:\n", "search:\n  scheduler: pbt\n")),
        ),
        Case(
            "a text for true or false",
            ["training.group_by_length must be true or false; got 'yes'"],
            training("group_by_length: 'yes'"),
        ),
        Case(
            "a stage that says nothing",
            ["training.stages.0 must hold training keys; got nothing", "or {} for those of all stages"],
            training("stages: [null]"),
        ),
        Case(
            "layers that start anew and never train",
            ["training.freeze_encoder must be false in one stage at least with reinit_layers, which nothing would"],
            both(training("reinit_layers: 1"), training("freeze_encoder: true")),
        ),
        Case(
            "windows that are mostly the ones before",
            ["must have a stride of at most half of max_length"],
            both(training("long_texts: windows"), training("stride: 99")),
        ),
        Case(
            "a setting that the schedule does not have",
            ["training.lr_scheduler_kwargs must be what the schedule cosine takes", "'num_cycle'"],
            both(training("lr_scheduler_type: cosine"), training("lr_scheduler_kwargs: {num_cycle: 2}")),
        ),
        Case(
            "a schedule that lacks a setting",
            ["training.lr_scheduler_kwargs must be what the schedule cosine_with_min_lr takes", "min_lr"],
            training("lr_scheduler_type: cosine_with_min_lr"),
        ),
        Case(
            "a setting that the optimizer passes over",
            ["training.optim_args must be settings that the optimizer adamw_torch_fused takes", "changes nothing"],
            training("optim_args: momentum=0.9"),
        ),
        Case(
            "an attention that nobody computes",
            ["training.attn_implementation must be one of eager, flash_attention_2", "did you mean 'sdpa'"],
            training("attn_implementation: spda"),
        ),
        Case(
            "`--set` of a stage that is not there",
            ["--set training.stages.2.learning_rate must name a key inside a mapping, or the number of a list's entry"],
            training("stages: [{}, {}]"),
            f"{TUNE} --set training.stages.2.learning_rate=1e-5",
        ),
    ),
    "Sharded weights": (
        Case(
            "`fsdp` with one worker",
            ["resources.workers must be at least 2 with training.fsdp"],
            training("fsdp: true"),
        ),
        Case(
            "`fsdp` as former versions of transformers had it",
            ["training.fsdp must be true or false; got 'full_shard auto_wrap'"],
            training("fsdp: full_shard auto_wrap"),
            WORKERS,
        ),
        Case(
            "a key of `fsdp_config` that is not supported",
            ["training.fsdp_config.activation_checkpointing must be one of", "training.activation_checkpointing"],
            both(training("fsdp: true"), training("fsdp_config: {activation_checkpointing: true}")),
            WORKERS,
        ),
        Case(
            "`fsdp` with quantised weights",
            ["must have no bits with fsdp: quantised weights cannot be sharded"],
            both(training("fsdp: true"), training("adapter: lora"), training("bits: 8")),
            WORKERS,
        ),
        Case(
            "`fsdp` with an optimizer that cannot step on shards",
            ["must have one of the optimizers adamw_torch, adamw_torch_fused", "with fsdp"],
            both(training("fsdp: true"), training("optim: adafactor")),
            WORKERS,
        ),
    ),
}
