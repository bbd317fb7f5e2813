"""Bad input in the backbone, the settings, the command, and the places that a study needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from bad_input_changes import (
    TUNE,
    Case,
    both,
    damaged,
    forget_pool,
    held,
    let_go,
    line,
    linked_away,
    no_root_mount,
    numbers,
    other_model,
    own_backbone,
    own_test_file,
    put_back,
    replace,
    second_trial,
    small_disk,
    space,
    training,
    unmounted,
    write,
    yaml,
)

SMALL_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
SMALL_GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
SMALL_ROBERTA = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 66, "pad_token_id": 1,
}  # fmt: skip

SETTINGS: dict[str, Sequence[Case]] = {
    "The backbone": (
        Case(
            "the backbone's folder is not there",
            ["study.yaml: backbone", "'./backbon'", "did you mean 'backbone'"],
            yaml("backbone: backbone", "backbone: ./backbon"),
        ),
        Case(
            "the backbone is not on the hub, or the hub is away",
            ["nobody/no-such-model"],
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
            "the backbone is a decoder",
            ["be a text encoder, such as BERT", "'gpt2'"],
            other_model("gpt2", **SMALL_GPT2),
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
            "`bits` without an adapter",
            ["have an adapter where bits is set: quantised weights cannot be trained"],
            training("bits: 4"),
        ),
        Case(
            "a search space by an unknown name",
            ["base_large, lora, minute, small", "'minutes'", "did you mean 'minute'"],
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
    "Options of the command": (
        Case(
            "`--set` without `=`",
            ["--set search.trials", "KEY=VALUE", "--set training.learning_rate=2e-5"],
            command=f"{TUNE} --set search.trials",
        ),
        Case(
            "`--set` of an unknown key",
            ["--set search.trails", "did you mean 'trials'"],
            command=f"{TUNE} --set search.trails=3",
        ),
        Case(
            "`--set` of a value of the wrong type",
            ["--set search.trials must be a whole number"],
            command=f"{TUNE} --set search.trials=few",
        ),
        Case("`--trials 0`", ["'--trials'", "of at least 1", "got '0'"], command=f"{TUNE} --trials 0"),
        Case("an unknown option", ["--trails", "--trials"], command=f"{TUNE} --trails 3"),
        Case("an unknown command", ["tuna", "tune"], command="tuna study.yaml"),
        Case(
            "`backbone new` into a folder that holds files",
            ["kept must be a new or an empty folder", "a folder that holds files"],
            command="backbone new --texts mood_train.tsv --out kept",
            change=both(lambda folder: (folder / "kept").mkdir(), write("kept/notes.txt", "mine")),
        ),
        Case(
            "`backbone new` of a file that is not there",
            ["moods_test.tsv must be a text file", "did you mean 'mood_test.tsv'"],
            command="backbone new --texts moods_test.tsv --out made",
        ),
        Case(
            "`backbone pretrain` into a folder that holds files",
            ["kept must be a new or an empty folder"],
            command="backbone pretrain study.yaml --out kept",
            change=both(lambda folder: (folder / "kept").mkdir(), write("kept/notes.txt", "mine")),
        ),
        Case(
            "`backbone pretrain` goes on with other settings than it was begun with",
            ["be begun with the same texts and settings", "or remove"],
            command="backbone pretrain study.yaml --out made --epochs 2",
            change=both(
                lambda folder: (folder / "made.unfinished").mkdir(), write("made.unfinished/settings.json", "{}")
            ),
        ),
    ),
    "A study that is there": (
        Case(
            "a study is run again without `--resume`", ["the study 'moods' must be new", "add --resume"], finished=True
        ),
        Case(
            "`--resume` with a changed key",
            ["training.max_length of the study 'moods'", "24 where it was 16"],
            yaml("max_length: 16", "max_length: 24"),
            f"{TUNE} --resume",
            finished=True,
        ),
        Case(
            "`--resume` with a changed task file",
            ["mood_train.tsv", "another content", "restore the file"],
            line("mood_train.tsv", 1, "t0\tanother\tcalm"),
            f"{TUNE} --resume",
            finished=True,
        ),
        Case(
            "no study of this name",
            ["the study 'mods'", "did you mean 'moods'"],
            command="trials mods",
            env={"TUTTI_STUDIES": "studies"},
            finished=True,
        ),
        Case("a folder that is no study's", ["run `tutti tune STUDY.yaml` first"], command="trials nowhere"),
        Case(
            "a study's stored file was changed by hand",
            ["study.json", "restore the file"],
            replace("studies/moods/study.json", '"trials": 1', '"trials": "one"'),
            "trials studies/moods",
            finished=True,
        ),
        Case(
            "a study's name is a link out of the folder of studies",
            ["the study 'moods' must lie in DIR/studies; got a link to DIR/elsewhere"],
            linked_away,
            "trials moods",
            finished=True,
            env={"TUTTI_STUDIES": "studies"},
            after=put_back,
        ),
        Case(
            "a study is mended while a process runs it",
            ["the study 'moods' must be run by one process at a time", "wait for the other run to end"],
            held,
            "doctor studies/moods",
            finished=True,
            after=let_go,
        ),
    ),
    "Ensembles and pseudo-labels": (
        Case(
            "an unknown recipe",
            ["the recipe 'stackign'", "did you mean 'stacking'"],
            command="ensemble studies/moods --recipe stackign",
            finished=True,
        ),
        Case(
            "an unknown recipe in the study file",
            ["ensemble.recipe", "did you mean 'baseline'"],
            yaml("search:\n", "ensemble: {recipe: base_line}\nsearch:\n"),
        ),
        Case(
            "a recipe file with a wrong key",
            ["own.yaml: members.topp", "did you mean 'top'"],
            write("own.yaml", "members: {topp: 3}\n"),
            "ensemble studies/moods --recipe own.yaml",
            finished=True,
        ),
        Case(
            "a recipe names an unknown method",
            ["own.yaml: method must be one of auto, uniform", "'greddy'", "did you mean 'greedy'"],
            write("own.yaml", "method: greddy\n"),
            "ensemble studies/moods --recipe own.yaml",
            finished=True,
        ),
        Case(
            "a recipe sets a key of members below nothing",
            ["own.yaml: members.within must be at least 0", "-0.1"],
            write("own.yaml", "members: {within: -0.1}\n"),
            "ensemble studies/moods --recipe own.yaml",
            finished=True,
        ),
        Case(
            "a vote by hands in a task whose labels are numbers",
            ["the method hard must combine what the task's labels are", "mood, whose labels are numbers", "auto"],
            both(numbers, write("own.yaml", "method: hard\n")),
            "ensemble studies/moods --recipe own.yaml",
            finished=True,
        ),
        Case(
            "a trial in the bank saw another split",
            ["trial t0001, mood/validation must hold the rows and labels that trial t0000 holds", "new study"],
            second_trial(rows=True),
            "ensemble studies/moods",
            finished=True,
        ),
        Case(
            "a trial in the bank knew other classes",
            ["trial t0001, mood/validation must hold probabilities of the classes calm, glad, sad", "calm, glad, grim"],
            second_trial(classes=True),
            "ensemble studies/moods",
            finished=True,
        ),
        Case(
            "a recipe with a threshold above 1",
            ["pseudo_labels.threshold must be at most 1", "99"],
            write("own.yaml", "pseudo_labels: {threshold: 99}\n"),
            "pseudo-label studies/moods --recipe own.yaml",
            finished=True,
        ),
        Case(
            "a recipe with a threshold where none is looked at",
            ["own.yaml: pseudo_labels must have no `threshold` with `select: quantile`"],
            write("own.yaml", "pseudo_labels: {select: quantile, threshold: 0.9}\n"),
            "pseudo-label studies/moods --recipe own.yaml",
            finished=True,
        ),
        Case(
            "no trial has finished",
            ["have a finished trial", "wait until one has, or run `tutti tune --resume --trials +4` on the study file"],
            lambda folder: shutil.rmtree(folder / "studies/moods/bank"),
            "ensemble studies/moods",
            finished=True,
        ),
        Case(
            "a test file has changed since the study read it",
            ["mood_test.tsv must be the test file", "another content", "restore the file"],
            both(own_test_file, line("mood_test.tsv", 2, "t1\tanother text")),
            "ensemble studies/moods",
            finished=True,
        ),
        Case(
            "`--out` holds other files",
            ["a new or empty folder", "notes.txt", "--out"],
            both(lambda folder: (folder / "kept").mkdir(), write("kept/notes.txt", "mine")),
            "ensemble studies/moods --out kept",
            finished=True,
        ),
        Case(
            "`--out` is a file",
            ["got a file", "--out"],
            command="ensemble studies/moods --out study.yaml",
            finished=True,
        ),
        Case(
            "no task has unlabelled rows",
            ["have a task with unlabelled rows", "`unlabeled:`"],
            lambda folder: forget_pool(folder),
            "pseudo-label studies/moods",
            finished=True,
        ),
    ),
    "The cluster": (
        Case(
            "nothing listens at the address",
            ["the Ray cluster at http://127.0.0.1:9", "--address"],
            command="submit study.yaml --address http://127.0.0.1:9",
            code=1,
        ),
        Case(
            "the files are too large to travel",
            ["at most 100 MiB", "mood_pool.tsv (120 MiB)", "storage.path"],
            lambda folder: os.truncate(folder / "mood_pool.tsv", 120 * 2**20),
            "submit study.yaml",
        ),
        Case(
            "a study for the cluster names no shared folder",
            ["study.yaml: storage.path must name the folder", "set `storage.path` to a folder that every node sees"],
            yaml("storage:\n  path: studies\n", ""),
            "submit study.yaml",
        ),
        Case(
            "the address of Optuna's database is that of no server",
            ["storage.database must be the address of a PostgreSQL server's database", "got the scheme 'mysql'"],
            yaml("  path: studies\n", "  path: studies\n  database: mysql://me:secret@db/optuna\n"),
        ),
        Case(
            "the port of Optuna's database is no number",
            ["storage.database must name a host, and a port in digits", "postgresql://USER@HOST:5432/DATABASE"],
            yaml("  path: studies\n", "  path: studies\n  database: postgresql://me@host:abc/optuna\n"),
        ),
        Case(
            "Optuna's database is away",
            ["database postgresql://me:***@127.0.0.1:9/optuna must be read and written", "Connection refused"],
            yaml("  path: studies\n", "  path: studies\n  database: postgresql://me:secret@127.0.0.1:9/optuna\n"),
            code=1,
        ),
        Case(
            "Optuna and MLflow are to share a database",
            ["tracking.uri must be another database than storage.database", "make a second database"],
            yaml(
                "  path: studies\n",
                "  path: studies\n  database: postgresql://me@127.0.0.1:9/all\n"
                "tracking: {uri: 'postgresql://you:secret@127.0.0.1:9/all'}\n",
            ),
        ),
        Case(
            "the address of MLflow has half a host",
            ["tracking.uri must name a host, and a port in digits", "write it like http://HOST:5000"],
            yaml("  path: studies\n", "  path: studies\ntracking: {uri: 'http://['}\n"),
        ),
        Case(
            "the address of MLflow has an unknown scheme",
            ["tracking.uri must be the address of an MLflow store", "the scheme 'htpp'", "did you mean 'http'"],
            yaml("search:\n", "tracking: {uri: 'htpp://mlflow:5000'}\nsearch:\n"),
        ),
        Case(
            "a study file and `--status` together",
            ["one of STUDY.yaml, --status ID and --stop ID", "several of them"],
            command="submit study.yaml --status raysubmit_1",
        ),
        Case(
            "a trial asks for more than the cluster has",
            ["resources must fit the Ray cluster", "4096 CPUs", "lower them"],
            yaml("search:\n", "resources: {cpus_per_worker: 4096}\nsearch:\n"),
            ray=True,
        ),
        Case(
            "neither a study file nor a job",
            ["one of STUDY.yaml, --status ID and --stop ID", "none of them"],
            command="submit",
        ),
    ),
    "The machine": (
        Case(
            "no space is left",
            ["No space left on device", "free some space"],
            small_disk("20k"),
            code=1,
            after=unmounted,
            missing=no_root_mount,
        ),
        Case(
            "a file stands where the studies' folder should be",
            ["DIR/studies must be a folder", "got a file", "`storage.path:`"],
            write("studies", ""),
        ),
        Case(
            "a limit of no room at all for checkpoints",
            ["storage.max_gigabytes must be above 0"],
            yaml("  path: studies\n", "  path: studies\n  max_gigabytes: 0\n"),
        ),
        Case(
            "the studies' folder lies on a read-only disk",
            ["Read-only file system", "make it writable or name another folder"],
            small_disk("16k,ro"),
            code=1,
            after=unmounted,
            missing=no_root_mount,
        ),
    ),
}
