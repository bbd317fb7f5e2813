"""Bad input to the prediction of new rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bad_input_changes import Case, write

PREDICT_NEW = "predict studies/moods --input new.csv --out out.csv"


def pruned(folder: Path) -> None:
    """Removes the weights of the finished study's only trial."""
    from tutti.modeling.checkpoint import prune_checkpoint

    prune_checkpoint(folder / "studies/moods/trials/t0000/best")


def folds(folder: Path) -> None:
    """Turns the finished study into one with folds."""
    path = folder / "studies/moods/study.json"
    document = json.loads(path.read_text(encoding="utf8"))
    document["split"] |= {"folds": 3, "validation": None}
    path.write_text(json.dumps(document), encoding="utf8")


PREDICT: dict[str, Sequence[Case]] = {
    "New rows, and soups": (
        Case(
            "the rows are in a file that is not there",
            ["mood_tset.tsv must be a file", "did you mean 'mood_test.tsv'"],
            command="predict studies/moods --input mood_tset.tsv --out out.csv",
            finished=True,
        ),
        Case(
            "the file of new rows is empty",
            ["new.csv must have at least one row", "an empty file"],
            write("new.csv", ""),
            PREDICT_NEW,
            finished=True,
        ),
        Case(
            "the file of new rows has a header alone",
            ["new.csv must have at least one row", "got none"],
            write("new.csv", "text\n"),
            PREDICT_NEW,
            finished=True,
        ),
        Case(
            "a column is missing",
            ["new.csv must have the column 'text'", "the columns id, txt", "did you mean 'txt'"],
            write("new.csv", "id,txt\n1,rain\n"),
            PREDICT_NEW,
            finished=True,
        ),
        Case(
            "the first row has no id and a later one has",
            ["new.jsonl, line 1 must have the key 'id' like other rows; got text"],
            write("new.jsonl", '{"text": "rain"}\n{"id": "b", "text": "sun"}\n'),
            "predict studies/moods --input new.jsonl --out out.csv",
            finished=True,
        ),
        Case(
            "rows with labels where rows to predict are asked for",
            ["mood_train.tsv must have 2 tab-separated columns (id, text)", "got 3 in every line"],
            command="predict studies/moods --input mood_train.tsv --out out.csv",
            finished=True,
        ),
        Case(
            "the study has no such task",
            ["--task must be one of the tasks of moods: mood", "did you mean 'mood'"],
            command="predict studies/moods --task moods --input mood_test.tsv --out out.csv",
            finished=True,
        ),
        Case(
            "predictions are to be written in a format that there is not",
            ["--out out.xlsx must end in .csv, .jsonl, .json or .parquet"],
            command="predict studies/moods --input mood_test.tsv --out out.xlsx",
            finished=True,
        ),
        Case(
            "predictions are to be written in the place of a folder",
            ["--out out.csv must be a file", "got a folder"],
            lambda folder: (folder / "out.csv").mkdir(),
            "predict studies/moods --input mood_test.tsv --out out.csv",
            finished=True,
        ),
        Case(
            "predictions would take the place of the rows",
            ["--out new.csv must be another file than --input"],
            write("new.csv", "text\nrain\n"),
            "predict studies/moods --input new.csv --out new.csv",
            finished=True,
        ),
        Case(
            "a member's weights were pruned",
            ["trial t0000 must have weights", "pruned to keep within storage.max_gigabytes", "a smaller `members"],
            pruned,
            "predict studies/moods --input mood_test.tsv --out out.csv",
            finished=True,
        ),
        Case(
            "a checkpoint that is none",
            ["--checkpoint must have weights", "DIR/backbone"],
            command="predict studies/moods --checkpoint backbone --input mood_test.tsv --out out.csv",
            finished=True,
        ),
        Case(
            "who votes is named beside one checkpoint",
            ["--recipe must be left out with --checkpoint; got baseline", "--with must be left out with --checkpoint"],
            command="predict studies/moods --checkpoint studies/moods/trials/t0000/best --recipe baseline "
            "--with studies/moods --input mood_test.tsv --out out.csv",
            finished=True,
        ),
        Case(
            "a trial with folds in the place of a checkpoint",
            ["--checkpoint must have weights", "name the folder of a checkpoint, such as DIR", "t0000/fold-0/best"],
            folds,
            "predict studies/moods --checkpoint studies/moods/trials/t0000 --input mood_test.tsv --out out.csv",
            finished=True,
        ),
        Case(
            "a soup of trials with folds",
            ["the study moods must have models that left the same rows out", "got split.folds: 3"],
            folds,
            "soup studies/moods",
            finished=True,
        ),
    ),
}
