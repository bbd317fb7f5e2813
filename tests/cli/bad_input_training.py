"""Bad input under ``training:`` that a trial would pass over in silence, or would be the first to tell."""

from __future__ import annotations

from collections.abc import Sequence

from bad_input_changes import TUNE, Case, both, space, training, yaml

WORKERS = f"{TUNE} --set resources.workers=2"

TRAINING: dict[str, Sequence[Case]] = {
    "Training keys that do nothing": (
        Case("a training key by the name that it has elsewhere", training("lr: 1.0e-4")),
        Case("a key of TrainingArguments by its former name", training("evaluation_strategy: epoch")),
        Case("a task's weight by a name in other letters", training("task_weights: {Mood: 2}")),
        Case("weights are kept by something else than score and loss", training("best_by: f1")),
        Case(
            "trials of which some keep their weights by the loss",
            space("best_by: {type: categorical, choices: [score, loss]}"),
        ),
        Case(
            "a population that keeps weights by the loss",
            both(training("best_by: loss"), yaml("search:\n", "search:\n  scheduler: pbt\n")),
        ),
        Case("a head of ordered classes where no task has such", training("ordered_head: corn")),
        Case(
            "a loss of classes where labels are numbers",
            both(yaml("metric: macro_f1", "metric: pearson"), training("focal_gamma: 2")),
        ),
        Case("sampling over tasks in a study of one", training("stages: [{}, {task_sampling: uniform}]")),
        Case("a text for true or false", training("group_by_length: 'yes'")),
        Case("a stage that says nothing", training("stages: [null]")),
        Case(
            "an adapter on an encoder that never trains",
            both(training("adapter: lora"), training("freeze_encoder: true")),
        ),
        Case("a mean of more epochs than there are", training("swa_epochs: 2")),
        Case(
            "an attack that begins after the last epoch",
            training("stages: [{}, {adversarial: awp, adversarial_start: 1}]"),
        ),
        Case("an overlap of windows where texts are cut", training("stride: 4")),
        Case("windows that are mostly the ones before", both(training("long_texts: windows"), training("stride: 99"))),
        Case(
            "a setting that the schedule does not have",
            both(training("lr_scheduler_type: cosine"), training("lr_scheduler_kwargs: {num_cycle: 2}")),
        ),
        Case("a schedule that lacks a setting", training("lr_scheduler_type: cosine_with_min_lr")),
        Case("a setting that the optimizer passes over", training("optim_args: momentum=0.9")),
        Case("an attention that nobody computes", training("attn_implementation: spda")),
        Case(
            "`--set` of a stage that is not there",
            training("stages: [{}, {}]"),
            f"{TUNE} --set training.stages.2.learning_rate=1e-5",
        ),
    ),
    "Sharded weights": (
        Case("`fsdp` with one worker", training("fsdp: true")),
        Case("`fsdp` as former versions of transformers had it", training("fsdp: full_shard auto_wrap"), WORKERS),
        Case(
            "a key of `fsdp_config` that is not supported",
            both(training("fsdp: true"), training("fsdp_config: {activation_checkpointing: true}")),
            WORKERS,
        ),
        Case(
            "`fsdp` with quantised weights",
            both(training("fsdp: true"), training("adapter: lora"), training("bits: 8")),
            WORKERS,
        ),
        Case(
            "`fsdp` with an optimizer that cannot step on shards",
            both(training("fsdp: true"), training("optim: adafactor")),
            WORKERS,
        ),
    ),
}
