"""Bad input in the options of a command, in the study that it goes on with, and in the recipe of an ensemble."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from bad_input_changes import (
    TUNE,
    Case,
    both,
    forget_pool,
    held,
    let_go,
    line,
    linked_away,
    numbers,
    own_test_file,
    put_back,
    replace,
    second_trial,
    write,
    yaml,
)

COMMANDS: dict[str, Sequence[Case]] = {
    "Options of the command": (
        Case("`--set` without `=`", command=f"{TUNE} --set search.trials"),
        Case("`--set` of an unknown key", command=f"{TUNE} --set search.trails=3"),
        Case("`--set` of a value of the wrong type", command=f"{TUNE} --set search.trials=few"),
        Case("`--trials 0`", command=f"{TUNE} --trials 0"),
        Case("an unknown option", command=f"{TUNE} --trails 3"),
        Case("`trials --sort` by what is not there", command="trials studies/moods --sort learning_rat", finished=True),
        Case("`trials` as CSV and as JSON", command="trials studies/moods --csv --json", finished=True),
        Case("an unknown command", command="tuna study.yaml"),
        Case(
            "`backbone new` into a folder that holds files",
            command="backbone new --texts mood_train.tsv --out kept",
            change=both(lambda folder: (folder / "kept").mkdir(), write("kept/notes.txt", "mine")),
        ),
        Case(
            "`backbone pretrain` with a learning rate below 0",
            command="backbone pretrain study.yaml --out made --learning-rate -1",
        ),
        Case(
            "`backbone pretrain` with longer rows than the backbone has positions for",
            command="backbone pretrain study.yaml --out made --set training.max_length=9999",
        ),
        Case(
            "`backbone pretrain` of an empty file",
            write("news.txt", "\n"),
            "backbone pretrain --texts news.txt --backbone backbone --out made --objective masked",
        ),
        Case(
            "`backbone pretrain` of a text of one word",
            write("news.txt", "calm\n"),
            "backbone pretrain --texts news.txt --backbone backbone --out made --objective masked",
        ),
        Case(
            "`backbone pretrain` to guess next tokens, with a tokenizer that has none for the end of a text",
            command="backbone pretrain study.yaml --out made --objective causal",
        ),
        Case(
            "`backbone pretrain` shares layers out to one worker",
            command="backbone pretrain study.yaml --out made --fsdp",
        ),
        Case(
            "`backbone pretrain` of texts without a backbone",
            command="backbone pretrain --texts mood_train.tsv --out made",
        ),
        Case(
            "a pretraining file with an unknown key, and texts that are not there",
            write("pretraining.yaml", "backbone: backbone\ntexts: moods_train.tsv\nout: made\nlearning_rte: 1.0e-3\n"),
            "backbone pretrain pretraining.yaml",
        ),
        Case(
            "`backbone pretrain` keeps backbones where those of another run are",
            command="backbone pretrain study.yaml --out made --keep-every 5",
            change=both(lambda folder: (folder / "made.kept").mkdir(), write("made.kept/notes.txt", "mine")),
        ),
        Case(
            "a search over a pretraining file by a loss that it changes, without the steps of a trial",
            write(
                "pretraining.yaml",
                "backbone: backbone\ntexts: mood_train.tsv\nout: made\n"
                "search_space: {mask_share: {type: uniform, low: 0.1, high: 0.4}}\n",
            ),
            "tune pretraining.yaml",
        ),
        Case(
            "`tune` of a pretraining file without a search space",
            write("pretraining.yaml", "backbone: backbone\ntexts: mood_train.tsv\nout: made\n"),
            "tune pretraining.yaml",
        ),
        Case("`backbone probe` of a run that has kept nothing", command="backbone probe made study.yaml"),
        Case("`ensemble` into the current folder", command="ensemble studies/moods --out ."),
        Case(
            "`backbone pretrain` goes on with other settings than it was begun with",
            command="backbone pretrain study.yaml --out made --epochs 2",
            change=both(
                lambda folder: (folder / "made.unfinished").mkdir(), write("made.unfinished/settings.json", "{}")
            ),
        ),
    ),
    "A study that is there": (
        Case("a study is run again without `--resume`", finished=True),
        Case("`--resume` with a changed key", yaml("max_length: 16", "max_length: 24"), f"{TUNE} --resume"),
        Case("`--resume` with a changed task file", line("mood_train.tsv", 1, "t0\tanother\tcalm"), f"{TUNE} --resume"),
        Case("no study of this name", command="trials mods", env={"TUTTI_STUDIES": "studies"}, finished=True),
        Case("a folder that is no study's", command="trials nowhere"),
        Case(
            "a study's stored file was changed by hand",
            replace("studies/moods/study.json", '"trials": 1', '"trials": "one"'),
            "trials studies/moods",
        ),
        Case(
            "a study's name is a link out of the folder of studies",
            linked_away,
            "trials moods",
            finished=True,
            env={"TUTTI_STUDIES": "studies"},
            after=put_back,
        ),
        Case("a study is mended while a process runs it", held, "doctor studies/moods", after=let_go),
    ),
    "Ensembles and pseudo-labels": (
        Case("an unknown recipe", command="ensemble studies/moods --recipe stackign"),
        Case("an unknown recipe in the study file", yaml("search:\n", "ensemble: {recipe: base_line}\nsearch:\n")),
        Case(
            "a recipe file with a wrong key",
            write("own.yaml", "members: {topp: 3}\n"),
            "ensemble studies/moods --recipe own.yaml",
        ),
        Case(
            "a recipe names an unknown method",
            write("own.yaml", "method: greddy\n"),
            "ensemble studies/moods --recipe own.yaml",
        ),
        Case(
            "a recipe sets a key of members below nothing",
            write("own.yaml", "members: {within: -0.1}\n"),
            "ensemble studies/moods --recipe own.yaml",
        ),
        Case(
            "a vote by hands in a task whose labels are numbers",
            both(numbers, write("own.yaml", "method: hard\n")),
            "ensemble studies/moods --recipe own.yaml",
        ),
        Case("a trial in the bank saw another split", second_trial, "ensemble studies/moods"),
        Case(
            "no trial has finished",
            lambda folder: shutil.rmtree(folder / "studies/moods/bank"),
            "ensemble studies/moods",
        ),
        Case(
            "a test file has changed since the study read it",
            both(own_test_file, line("mood_test.tsv", 2, "t1\tanother text")),
            "ensemble studies/moods",
        ),
        Case(
            "`--out` holds other files",
            both(lambda folder: (folder / "kept").mkdir(), write("kept/notes.txt", "mine")),
            "ensemble studies/moods --out kept",
        ),
        Case("`--out` is a file", command="ensemble studies/moods --out study.yaml"),
        Case("no task has unlabelled rows", lambda folder: forget_pool(folder), "pseudo-label studies/moods"),
    ),
}
