"""Bad input to the prediction of new rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bad_input_changes import Case, Change, write

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


def _data(name: str, content: str) -> Change:
    def change(folder: Path) -> None:
        (folder / "data").mkdir()
        (folder / "data" / name).write_text(content, encoding="utf8")

    return change


PREDICT: dict[str, Sequence[Case]] = {
    "New rows, and soups": (
        Case(
            "the rows are in a file that is not there",
            command="predict studies/moods --input mood_tset.tsv --out out.csv",
        ),
        Case("a column is missing", write("new.csv", "id,txt\n1,rain\n"), PREDICT_NEW, finished=True),
        Case(
            "the first row has no id and a later one has",
            write("new.jsonl", '{"text": "rain"}\n{"id": "b", "text": "sun"}\n'),
            "predict studies/moods --input new.jsonl --out out.csv",
        ),
        Case(
            "the study has no such task",
            command="predict studies/moods --task moods --input mood_test.tsv --out out.csv",
        ),
        Case(
            "predictions are to be written in a format that there is not",
            command="predict studies/moods --input mood_test.tsv --out out.xlsx",
        ),
        Case(
            "predictions are to be written in the place of a folder",
            lambda folder: (folder / "out.csv").mkdir(),
            "predict studies/moods --input mood_test.tsv --out out.csv",
        ),
        Case(
            "predictions would take the place of the rows",
            write("new.csv", "text\nrain\n"),
            "predict studies/moods --input new.csv --out new.csv",
        ),
        Case("a member's weights were pruned", pruned, "predict studies/moods --input mood_test.tsv --out out.csv"),
        Case(
            "a checkpoint that is none",
            command="predict studies/moods --checkpoint backbone --input mood_test.tsv --out out.csv",
        ),
        Case(
            "who votes is named beside one checkpoint",
            command="predict studies/moods --checkpoint studies/moods/trials/t0000/best --recipe baseline "
            "--with studies/moods --input mood_test.tsv --out out.csv",
        ),
        Case(
            "a later test file of no task",
            command="predict studies/moods --inputs moods=mood_test.tsv --out out",
        ),
        Case("later test files and no place for them", command="predict studies/moods --inputs mood_test.tsv"),
        Case(
            "a submission in a format that there is not",
            command="predict studies/moods --inputs mood=mood_test.tsv --submission kaggle --out out",
        ),
        Case(
            "members that were trained on all rows, before any was",
            command="predict studies/moods --refit --input mood_test.tsv --out out.csv",
        ),
        Case("labels by fold of a study without folds", command="pseudo-label studies/moods --by-fold"),
        Case("two submissions to choose where there is none", command="leaderboard choose studies/moods"),
        Case(
            "a trial with folds in the place of a checkpoint",
            folds,
            "predict studies/moods --checkpoint studies/moods/trials/t0000 --input mood_test.tsv --out out.csv",
        ),
        Case(
            "a bundle is to be written into a folder that holds files",
            lambda folder: (folder / "bundle" / "notes").mkdir(parents=True),
            "export studies/moods --out bundle",
        ),
        Case("a bundle in a format that there is not", command="export studies/moods --format onxx --out bundle"),
        Case("a quantisation that there is not", command="export studies/moods --quantize int4 --out bundle"),
        Case("hours without the number of rows", command="export studies/moods --max-hours 9 --out bundle"),
        Case("an alias of nothing that is registered", command="export studies/moods --alias champion --out bundle"),
        Case(
            "a head that no class of transformers has", command="export studies/moods --format transformers --out plain"
        ),
        Case("a folder that was not exported is pushed", command="push studies me/mood"),
    ),
    "From a folder to a study file": (
        Case("a folder without labelled rows", _data("test.csv", "id,text\n1,rain\n"), "new data --out new.yaml"),
        Case(
            "a table without a column of labels",
            _data("train.csv", "text\nrain and nobody here today\n"),
            "new data --out new.yaml",
        ),
        Case("a study file in the place of another", command="new mood_train.tsv --out study.yaml"),
        Case("a known solution that there is not", command="new mood_train.tsv --out new.yaml --like feedback"),
        Case("a metric that does not fit the labels", command="new mood_train.tsv --out new.yaml --metric rouge_l"),
    ),
}
