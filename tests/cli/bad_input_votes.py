"""Bad input to what is made of a finished study: who may vote, submissions, reports, the leaderboard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence

from bad_input_changes import (
    Case,
    Change,
    another_label,
    another_split,
    another_split_of_all,
    both,
    empty_record,
    no_second,
    not_a_number,
    other_study,
    removed,
    write,
)

VOTE = "ensemble studies/moods --recipe own.yaml"
TOGETHER = "ensemble studies/moods --with second"


def _recipe(what: str, text: str) -> Case:
    return Case(what, write("own.yaml", f"{text}\n"), VOTE)


def _template(what: str, *lines: str, task: str = "mood", file: str = "sample.csv") -> Case:
    """A vote whose recipe names a sample submission of these lines."""
    recipe = f"submission: {{format: csv, templates: {{{task}: {file}}}}}\n"
    return Case(what, both(write("sample.csv", "\n".join((*lines, ""))), write("own.yaml", recipe)), VOTE)


def _submission(study: str, objective: object = None) -> Change:
    """The output of ``tutti ensemble``, as far as the leaderboard reads it."""
    card = {
        "study": study,
        "recipe": "r",
        "created": "2026",
        "objective": objective,
        "tasks": [],
        "files": {"mood.csv": "0"},
    }
    return both(lambda folder: (folder / "sent").mkdir(), write("sent/card.json", json.dumps(card)))


GUEST = "bank import studies/moods --name lgbm --task mood --validation oof.csv --test oof.csv"
VOTES: dict[str, Sequence[Case]] = {
    "Predictions of other models": (
        Case("a guest's file of other rows", write("oof.csv", "id,p_calm,p_glad,p_sad\nx,1,0,0\n"), GUEST),
        Case("a guest's file without a class", write("oof.csv", "id,calm,glad\nx,1,0\n"), GUEST),
        Case("a guest that is called as a trial", write("oof.csv", "id\n"), GUEST.replace("lgbm", "t0000")),
        Case(
            "predictions of no trial", lambda folder: None, "bank export studies/moods --trial t9 --task mood --out o"
        ),
        Case("an unknown second stage", lambda folder: None, "second studies/moods --task mood --model forest"),
        Case("columns of a layout without names", lambda folder: None, "second studies/moods --task mood --columns a"),
    ),
    "Who may vote": (
        Case(
            "another study without a finished trial",
            other_study(lambda study, known: shutil.rmtree(study / "bank")),
            TOGETHER,
            after=no_second,
        ),
        Case(
            "another study without a common task",
            other_study(lambda study, known: known["tasks"][0].update(name="tone")),
            TOGETHER,
            after=no_second,
        ),
        Case(
            "another study with further tasks, by the objective",
            other_study(lambda study, known: known["tasks"].append(known["tasks"][0] | {"name": "tone"})),
            f"{TOGETHER} --recipe baseline",
            after=no_second,
        ),
        Case(
            "another study with other classes",
            other_study(lambda study, known: known["tasks"][0].update(names=["calm", "glad", "grim"])),
            TOGETHER,
            after=no_second,
        ),
        Case(
            "another study with another test file",
            other_study(lambda study, known: known["origins"]["mood"]["test"].update(sha256="0")),
            TOGETHER,
            after=no_second,
        ),
        Case("another study with other validation rows", other_study(another_split), TOGETHER, after=no_second),
        Case(
            "the trials of a study whose database is lost", removed("studies/moods/optuna.db"), "trials studies/moods"
        ),
        _recipe("a filter that MLflow does not understand", "members: {filter: tags.vote == yes}"),
        _recipe("a filter that chooses by scores", "members: {filter: metrics.score > 0.8}"),
        _recipe("a filter that finds no trial", "members: {filter: tags.vote = 'yes'}"),
        Case("a trial in the bank says NaN", not_a_number, "ensemble studies/moods", code=1),
        Case(
            "every trial in the bank speaks of other rows than the study's validation rows",
            another_split_of_all,
            "ensemble studies/moods",
        ),
        Case("a label in the bank is that of no class", another_label, "ensemble studies/moods", code=1),
        Case("a trial's record in the bank was changed by hand", empty_record, "ensemble studies/moods", code=1),
    ),
    "Submissions": (
        _template("a template that is not there", "id,label", file="samples.csv"),
        _template(
            "a template with a column that is no output of the task",
            "id,calm,gald,sad",
            *(f"t{row},1,0,0" for row in range(6)),
        ),
        _template(
            "a template without a column for one of the classes", "id,calm,glad", *(f"t{row},1,0" for row in range(6))
        ),
        _template("a template of another test file", "id,label", "t0,x", "t9,x"),
        _template("a template with the labels of another task", "id,label", *(f"t{row},{row % 2}" for row in range(6))),
        _template("a template of a task that is none", "id,label", task="moods"),
        _recipe("an unknown submission format", "submission: cvs"),
        Case(
            "`--score` for a task that is none",
            write("truth.csv", "id,label\n"),
            "ensemble studies/moods --score mod=truth.csv",
        ),
        Case("`--score` without a file", command="ensemble studies/moods --score mood="),
        Case(
            "two files with `--score` for one",
            write("truth.csv", "id,label\n" + "".join(f"t{row},calm\n" for row in range(6))),
            "ensemble studies/moods --score truth.csv --score truth.csv",
        ),
        Case(
            "`--score` with the labels of other rows",
            write("truth.csv", "id,label\nt0,calm\n"),
            "ensemble studies/moods --score truth.csv",
        ),
        Case("a recipe without a name, as an unset variable leaves it", command="ensemble studies/moods --recipe="),
    ),
    "The leaderboard": (
        Case("a submission that is none", command="leaderboard add studies/moods studies --score 0.8"),
        Case(
            "a submission whose card was changed by hand",
            _submission(study="moods", objective={}),
            "leaderboard add studies/moods sent --score 0.8",
        ),
        Case(
            "a submission of another study",
            _submission(study="second"),
            "leaderboard add studies/moods sent --score 0.8",
        ),
        Case(
            "a submission whose file has changed since",
            both(_submission(study="moods"), write("sent/mood.csv", "id,label\n")),
            "leaderboard add studies/moods sent --score 0.8",
        ),
        Case(
            "a public score that is no number",
            _submission(study="moods"),
            "leaderboard add studies/moods sent --score nan",
        ),
        Case(
            "a leaderboard that was changed by hand",
            write("studies/moods/leaderboard.json", "[]"),
            "leaderboard show studies/moods",
            code=1,
        ),
    ),
}
