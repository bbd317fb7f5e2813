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
ENTRY = {"key": "0", "submission": "sent", "recipe": "r", "made": "2026", "added": "2026", "public": 0.8, "local": 0.7}


def _template(task: str, file: str) -> str:
    return f"submission: {{format: csv, templates: {{{task}: {file}}}}}\n"


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


VOTES: dict[str, Sequence[Case]] = {
    "Who may vote": (
        Case(
            "another study that is not there",
            ["the study 'secnd' must be the folder of a study", "did you mean 'second'"],
            other_study(),
            "ensemble studies/moods --with secnd",
            finished=True,
            after=no_second,
        ),
        Case(
            "another study without a finished trial",
            ["the study second must have a finished trial to vote with; got none", "leave the study out"],
            other_study(lambda study, known: shutil.rmtree(study / "bank")),
            TOGETHER,
            finished=True,
            after=no_second,
        ),
        Case(
            "another study without a common task",
            ["the study second must have a task of moods: mood; got tone; leave the study out"],
            other_study(lambda study, known: known["tasks"][0].update(name="tone")),
            TOGETHER,
            finished=True,
            after=no_second,
        ),
        Case(
            "another study with further tasks, by the objective",
            ["the study second must have the tasks of moods: mood; got mood, tone", "so that it votes in mood alone"],
            other_study(lambda study, known: known["tasks"].append(known["tasks"][0] | {"name": "tone"})),
            f"{TOGETHER} --recipe baseline",
            finished=True,
            after=no_second,
        ),
        Case(
            "another study with other classes",
            ["the study second, task mood must have the classes that it has in moods", "calm, glad, grim"],
            other_study(lambda study, known: known["tasks"][0].update(names=["calm", "glad", "grim"])),
            TOGETHER,
            finished=True,
            after=no_second,
        ),
        Case(
            "another study with another test file",
            ["the study second, task mood must have the test rows that moods has", "another content of mood_test.tsv"],
            other_study(lambda study, known: known["origins"]["mood"]["test"].update(sha256="0")),
            TOGETHER,
            finished=True,
            after=no_second,
        ),
        Case(
            "another study with other validation rows",
            ["trial second/t0000, mood/validation must hold the rows", "0 of them the same", "the same `split`"],
            other_study(another_split),
            TOGETHER,
            finished=True,
            after=no_second,
        ),
        Case(
            "the trials of a study whose database is lost",
            ["the study 'moods' must be in the database in which it began", "or restore that database"],
            removed("studies/moods/optuna.db"),
            "trials studies/moods",
            finished=True,
        ),
        Case(
            "a filter that MLflow does not understand",
            ["members.filter must be a filter that MLflow understands", "tags.vote == yes"],
            write("own.yaml", "members: {filter: tags.vote == yes}\n"),
            VOTE,
            finished=True,
        ),
        Case(
            "a filter that chooses by scores",
            ["members.filter must not select by metrics", "got the metric score", "use members.top or"],
            write("own.yaml", "members: {filter: metrics.score > 0.8}\n"),
            VOTE,
            finished=True,
        ),
        Case(
            "an empty filter",
            ["members.filter must select trials; got ''", "take members.filter out"],
            write("own.yaml", "members: {filter: ''}\n"),
            VOTE,
            finished=True,
        ),
        Case(
            "a filter that finds no trial",
            ["must find a finished trial; got none of 1 trial with predictions in moods", "tag trials in MLflow"],
            write("own.yaml", "members: {filter: tags.vote = 'yes'}\n"),
            VOTE,
            finished=True,
        ),
        Case(
            "a trial in the bank says NaN",
            [
                "validation.parquet must have probabilities that are numbers; got NaN or infinity",
                "or move the trial's folder",
            ],
            not_a_number,
            "ensemble studies/moods",
            code=1,
            finished=True,
        ),
        Case(
            "every trial in the bank speaks of other rows than the study's validation rows",
            ["trial t0000, mood/validation must hold the study's validation rows", "got 3 rows, 0 of them the same"],
            another_split_of_all,
            "ensemble studies/moods",
            finished=True,
        ),
        Case(
            "a label in the bank is that of no class",
            ["validation.parquet must have labels from 0 to 2, one for each class; got 7", "restore the file"],
            another_label,
            "ensemble studies/moods",
            code=1,
            finished=True,
        ),
        Case(
            "a trial's record in the bank was changed by hand",
            [
                "record.json must be the record that the trial wrote; got checkpoint (field required)",
                "restore the file",
            ],
            empty_record,
            "ensemble studies/moods",
            code=1,
            finished=True,
        ),
    ),
    "Submissions": (
        Case(
            "a template that is not there",
            ["own.yaml: submission.templates.mood must be an existing file", "did you mean 'sample.csv'"],
            both(write("sample.csv", "id,label\n"), write("own.yaml", _template("mood", "samples.csv"))),
            VOTE,
            finished=True,
        ),
        Case(
            "a template of one column",
            ["sample.csv must be a CSV file with a header, the id in its first column", "got 1 in row 1: id"],
            both(write("sample.csv", "id\nt0\n"), write("own.yaml", _template("mood", "sample.csv"))),
            VOTE,
            finished=True,
        ),
        Case(
            "a template with a column that is no output of the task",
            ["sample.csv must have columns of the task's outputs, calm, glad, sad; got the column 'gald'"],
            both(
                write("sample.csv", "id,calm,gald,sad\n" + "".join(f"t{row},1,0,0\n" for row in range(6))),
                write("own.yaml", _template("mood", "sample.csv")),
            ),
            VOTE,
            finished=True,
        ),
        Case(
            "a template without a column for one of the classes",
            ["sample.csv must have a column for each output of the task; got none for 'sad'"],
            both(
                write("sample.csv", "id,calm,glad\n" + "".join(f"t{row},1,0\n" for row in range(6))),
                write("own.yaml", _template("mood", "sample.csv")),
            ),
            VOTE,
            finished=True,
        ),
        Case(
            "a template of another test file",
            ["sample.csv must have the ids of the test file", "got 5 missing, such as 't1', and 1 too many"],
            both(write("sample.csv", "id,label\nt0,x\nt9,x\n"), write("own.yaml", _template("mood", "sample.csv"))),
            VOTE,
            finished=True,
        ),
        Case(
            "a template with the labels of another task",
            ["sample.csv must have labels of the task, calm, glad, sad, or none", "got '0', '1'", "empty its labels"],
            both(
                write("sample.csv", "id,label\n" + "".join(f"t{row},{row % 2}\n" for row in range(6))),
                write("own.yaml", _template("mood", "sample.csv")),
            ),
            VOTE,
            finished=True,
        ),
        Case(
            "a template of a task that is none",
            ["the template 'moods' must belong to a test file, of mood", "did you mean 'mood'"],
            both(write("sample.csv", "id,label\n"), write("own.yaml", _template("moods", "sample.csv"))),
            VOTE,
            finished=True,
        ),
        Case(
            "an unknown submission format",
            ["own.yaml: submission must be one of competition, glue, csv; got 'cvs'", "did you mean 'csv'"],
            write("own.yaml", "submission: cvs\n"),
            VOTE,
            finished=True,
        ),
        Case(
            "`--score` for a task that is none",
            ["--score mod=truth.csv must be TASK=FILE", "(mood)", "did you mean 'mood'"],
            write("truth.csv", "id,label\n"),
            "ensemble studies/moods --score mod=truth.csv",
            finished=True,
        ),
        Case(
            "`--score` without a file",
            ["--score mood= must name one file for each test file of the study; got none"],
            command="ensemble studies/moods --score mood=",
            finished=True,
        ),
        Case(
            "two files with `--score` for one",
            ["--score truth.csv must name one file for each test file of the study; got a second one"],
            write("truth.csv", "id,label\n" + "".join(f"t{row},calm\n" for row in range(6))),
            "ensemble studies/moods --score truth.csv --score truth.csv",
            finished=True,
        ),
        Case(
            "`--score` with the labels of other rows",
            ["truth.csv must have a label for every test row of mood; got none for 5 of 6 rows, such as 't1'"],
            write("truth.csv", "id,label\nt0,calm\n"),
            "ensemble studies/moods --score truth.csv",
            finished=True,
        ),
        Case(
            "a recipe without a name, as an unset variable leaves it",
            ["the recipe ''", "must be one of auto"],
            command="ensemble studies/moods --recipe=",
            finished=True,
        ),
    ),
    "Reports": (
        Case(
            "`tutti report --out` holds other files",
            ["a new or empty folder", "notes.txt", "--out"],
            both(lambda folder: (folder / "kept").mkdir(), write("kept/notes.txt", "mine")),
            "report studies/moods --out kept",
            finished=True,
        ),
        Case(
            "a report on an unknown recipe",
            ["the recipe 'stackign'", "did you mean 'stacking'"],
            command="report studies/moods --recipe stackign",
            finished=True,
        ),
    ),
    "The leaderboard": (
        Case(
            "a submission that is none",
            ["studies must be a folder that `tutti ensemble` wrote; got no card.json in it"],
            command="leaderboard add studies/moods studies --score 0.8",
            finished=True,
        ),
        Case(
            "a submission by a name that no folder has",
            ["stdies must be a folder that `tutti ensemble` wrote; got no such folder; did you mean 'studies'?"],
            command="leaderboard add studies/moods stdies --score 0.8",
            finished=True,
        ),
        Case(
            "a submission whose card was changed by hand",
            ["sent must be a folder that `tutti ensemble` wrote; got an invalid card.json (no 'score' where it"],
            _submission(study="moods", objective={}),
            "leaderboard add studies/moods sent --score 0.8",
            finished=True,
        ),
        Case(
            "a submission of another study",
            ["sent must be a submission of the study moods; got second"],
            _submission(study="second"),
            "leaderboard add studies/moods sent --score 0.8",
            finished=True,
        ),
        Case(
            "a submission whose file has changed since",
            ["mood.csv must be the file that the card lists; got another content"],
            both(_submission(study="moods"), write("sent/mood.csv", "id,label\n")),
            "leaderboard add studies/moods sent --score 0.8",
            finished=True,
        ),
        Case(
            "a public score that is no number",
            ["--score must be a finite number; got nan"],
            _submission(study="moods"),
            "leaderboard add studies/moods sent --score nan",
            finished=True,
        ),
        Case(
            "a leaderboard that was changed by hand",
            ["leaderboard.json must be as `tutti leaderboard add` wrote it", "restore the file"],
            write("studies/moods/leaderboard.json", "[]"),
            "leaderboard show studies/moods",
            code=1,
            finished=True,
        ),
        Case(
            "a score on the leaderboard that is text",
            ["leaderboard.json must be as `tutti leaderboard add` wrote it", "submissions.0.public", "valid number"],
            write("studies/moods/leaderboard.json", json.dumps({"submissions": [{**ENTRY, "public": "0.8"}]})),
            "leaderboard show studies/moods",
            code=1,
            finished=True,
        ),
        Case(
            "a submission on the leaderboard without tasks",
            ["leaderboard.json must be as `tutti leaderboard add` wrote it", "submissions.0.tasks", "an object"],
            write("studies/moods/leaderboard.json", json.dumps({"submissions": [{**ENTRY, "tasks": None}]})),
            "leaderboard show studies/moods",
            code=1,
            finished=True,
        ),
    ),
}
