"""Bad input under ``training:`` that a trial would pass over in silence, or would be the first to tell."""

from __future__ import annotations

from collections.abc import Sequence

from bad_input_changes import TUNE, Case, both, space, training, yaml

WORKERS = f"{TUNE} --set resources.workers=2"

TRAINING: dict[str, Sequence[Case]] = {
    "Training keys that do nothing": (
        Case("a task's weight by a name in other letters", training("task_weights: {Mood: 2}")),
        Case(
            "layers that start anew and never train",
            both(training("reinit_layers: 1"), training("freeze_encoder: true")),
        ),
        Case(
            "trials of which some keep their weights by the loss",
            space("best_by: {type: categorical, choices: [score, loss]}"),
        ),
        Case(
            "a population that keeps weights by the loss",
            both(training("best_by: loss"), yaml("search:\n", "search:\n  scheduler: pbt\n")),
        ),
        Case("a stage that says nothing", training("stages: [null]")),
        Case("windows that are mostly the ones before", both(training("truncation: windows"), training("stride: 99"))),
        Case(
            "a setting that the schedule does not have",
            both(training("lr_scheduler_type: cosine"), training("lr_scheduler_kwargs: {num_cycle: 2}")),
        ),
        Case("a schedule that lacks a setting", training("lr_scheduler_type: cosine_with_min_lr")),
        Case("a setting that the optimizer passes over", training("optim_args: momentum=0.9")),
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
