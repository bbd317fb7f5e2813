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
            "`backbone pretrain` with a learning rate below 0",
            ["the learning rate must be a finite number above 0; got -1"],
            command="backbone pretrain study.yaml --out made --learning-rate -1",
        ),
        Case(
            "`backbone pretrain` with longer rows than the backbone has positions for",
            ["training.max_length must be at most", "the positions that the backbone"],
            command="backbone pretrain study.yaml --out made --set training.max_length=9999",
        ),
        Case(
            "`backbone pretrain` with a generator wider than the discriminator",
            ["the generator's size must be above 0 and at most 1", "got 2"],
            command="backbone pretrain study.yaml --out made --generator-size 2",
        ),
        Case(
            "`backbone pretrain` of texts without a backbone",
            ["`backbone pretrain` must have a study file, or --texts and --backbone", "got --texts alone"],
            command="backbone pretrain --texts mood_train.tsv --out made",
        ),
        Case(
            "`ensemble` into the current folder",
            ["DIR must be a folder that can be replaced as a whole", "got the current folder; name a folder inside it"],
            command="ensemble studies/moods --out .",
            finished=True,
        ),
        Case(
            "`backbone pretrain` goes on with other settings than it was begun with",
            ["be begun with the same texts, backbone and settings", "or remove"],
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
            ["trial t0001, mood/validation must hold predictions of 3 classes (calm, glad, sad)", "calm, glad, grim"],
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
            ["have predictions of a finished trial", "run `tutti tune --resume --trials +4` on the study file"],
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
}
