"""``tutti leaderboard``: records public scores of submissions and compares them with local ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tutti.cli.options import Study
from tutti.workflows.console import console, show_next, study_argument
from tutti.workflows.shown import show_choice, show_leaderboard
from tutti.workflows.study import open_study


def add(
    study: Study,
    submission: Annotated[Path, typer.Argument(metavar="SUBMISSION", help="A folder that `tutti ensemble` wrote.")],
    score: Annotated[float, typer.Option("--score", help="Its public score, higher is better: negate an error.")],
) -> None:
    """Keeps a submission's public score beside its local one, in the study's folder and in MLflow.

    Example: `tutti leaderboard add glue_trio studies/glue_trio/ensembles/auto --score 0.8123`
    """
    opened = open_study(study)
    show_leaderboard(console, opened.name, opened.add_public_score(submission, score))
    name = study_argument(opened.folder)
    show_next(console, f"leaderboard choose {name}", f"report {name}")


def show(study: Study) -> None:
    """Shows a study's submissions, the highest public score first, and how public and local scores go together.

    Example: `tutti leaderboard show glue_trio`
    """
    opened = open_study(study)
    show_leaderboard(console, opened.name, opened.leaderboard())
    show_next(console, f"leaderboard add {study_argument(opened.folder)} FOLDER --score SCORE")


def choose(
    study: Study,
    public_share: Annotated[
        float, typer.Option("--public-share", metavar="SHARE", help="Of the test rows, that public scores are of.")
    ] = 0.3,
) -> None:
    """Chooses the two submissions with the best expected private score, and says why.

    By nested estimates, public scores, and how alike two submissions err. Warns where public and local scores disagree
    by more than chance.

    Example: `tutti leaderboard choose glue_trio --public-share 0.2`
    """
    opened = open_study(study)
    show_choice(console, opened.choose_submissions(public_share=public_share))
    show_next(console, f"leaderboard add {study_argument(opened.folder)} FOLDER --score SCORE")
