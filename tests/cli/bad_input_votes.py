"""Bad input to what is made of a finished study: who may vote, submissions, reports, the leaderboard."""

from __future__ import annotations

from collections.abc import Sequence

from bad_input_changes import Case, another_split, not_a_number, other_study, write

VOTE = "ensemble studies/moods --recipe own.yaml"
TOGETHER = "ensemble studies/moods --with second"

VOTES: dict[str, Sequence[Case]] = {
    "Who may vote": (
        Case(
            "another study that is not there",
            ["the study 'secnd' must be the folder of a study", "did you mean 'second'"],
            other_study(),
            "ensemble studies/moods --with secnd",
            finished=True,
        ),
        Case(
            "another study with other classes",
            ["the study second, task mood must have the classes that it has in moods", "calm, glad, grim"],
            other_study(lambda study, known: known["tasks"][0].update(class_names=["calm", "glad", "grim"])),
            TOGETHER,
            finished=True,
        ),
        Case(
            "another study with another test file",
            ["the study second, task mood must have the test rows that moods has", "another content of mood_test.tsv"],
            other_study(lambda study, known: known["origins"]["mood"]["test"].update(sha256="0")),
            TOGETHER,
            finished=True,
        ),
        Case(
            "another study with other validation rows",
            ["trial second/t0000, mood/validation must hold the rows", "0 of them the same", "the same `split`"],
            other_study(another_split),
            TOGETHER,
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
            "a filter that finds no trial",
            ["must find a finished trial; got none of 1 trial with predictions in moods", "tag trials in MLflow"],
            write("own.yaml", "members: {filter: tags.vote = 'yes'}\n"),
            VOTE,
            finished=True,
        ),
        Case(
            "a trial in the bank says NaN",
            ["validation.parquet must have probabilities that are numbers; got NaN or infinity", "run the trial"],
            not_a_number,
            "ensemble studies/moods",
            code=1,
            finished=True,
        ),
    ),
}
