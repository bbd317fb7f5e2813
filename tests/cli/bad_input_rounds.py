"""Bad input to ``tutti round``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bad_input_changes import Case, Change, both, forget_pool, write

ROUND = "round studies/moods"
ENDED = {"number": 1, "recipe": "r", "recipe_sha256": "0", "study": 5, "teachers": ["moods"], "kept": True}


def _study(change: Callable[[dict[str, Any]], object]) -> Change:
    def changed(folder: Path) -> None:
        path = folder / "studies/moods/study.json"
        document = json.loads(path.read_text(encoding="utf8"))
        change(document)
        path.write_text(json.dumps(document), encoding="utf8")

    return changed


def _enough_rows(folder: Path) -> None:
    """Makes the finished study seem to have enough validation rows for a round."""
    path = folder / "studies/moods/data/prepared.json"
    document = json.loads(path.read_text(encoding="utf8"))
    document["parts"]["mood"]["validation"] = document["parts"]["mood"]["train"]
    path.write_text(json.dumps(document), encoding="utf8")


ROUNDS: dict[str, Sequence[Case]] = {
    "Rounds": (
        Case(
            "a round of a study without unlabelled rows",
            ["the study moods must have a task with unlabelled rows", "`unlabeled:`"],
            forget_pool,
            ROUND,
            finished=True,
        ),
        Case(
            "a round of a study that lacks trials",
            ["the study moods must have all its trials before a round; got 1 trial that ended, of 5", "--resume"],
            _study(lambda study: study["search"].update(trials=5)),
            ROUND,
            finished=True,
        ),
        Case(
            "a round of a study with folds",
            ["the study moods must have rows that no teacher has trained on", "got split.folds", "split.validation"],
            _study(lambda study: study.update(split={"folds": 3})),
            ROUND,
            finished=True,
        ),
        Case(
            "a round of a study with few validation rows",
            [
                "task mood of the study moods must have 25 validation rows of different texts or more",
                "got 3",
                "split.validation",
            ],
            command=ROUND,
            finished=True,
        ),
        Case(
            "a round with a recipe that is not there",
            ["the recipe 'self_trainin'", "did you mean 'self_training'"],
            command=f"{ROUND} --recipe self_trainin",
            finished=True,
        ),
        Case(
            "a round whose recipe has a sample submission of other rows",
            ["sample.csv must have the ids of the test file", "name the sample submission that belongs to"],
            both(
                write("sample.csv", "id,label\nt0,x\nt9,x\n"),
                write("own.yaml", "submission: {format: csv, templates: {mood: sample.csv}}\n"),
            ),
            f"{ROUND} --recipe own.yaml",
            finished=True,
        ),
        Case(
            "the result of a round was changed by hand",
            ["rounds/1/round.json must be as `tutti round` wrote it; got study (input should be a valid string)"],
            both(
                lambda folder: (folder / "studies/moods/rounds/1").mkdir(parents=True),
                write("studies/moods/rounds/1/round.json", json.dumps(ENDED)),
                _enough_rows,
            ),
            ROUND,
            code=1,
            finished=True,
        ),
        Case(
            "a round of fewer trials than one",
            ["--trials"],
            command=f"{ROUND} --trials 0",
            finished=True,
        ),
    ),
}
