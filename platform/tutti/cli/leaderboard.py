"""``tutti leaderboard``: records public scores of submissions and compares them with local ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutti.cli import stores
from tutti.cli.browse import Study
from tutti.cli.console import console
from tutti.errors import TrackingError

if TYPE_CHECKING:
    from tutti.outputs.submission.leaderboard import Entry

app = typer.Typer(help="Keeps what a competition's leaderboard said of submissions.", no_args_is_help=True)


@app.command("add")
def add(
    study: Study,
    submission: Annotated[Path, typer.Argument(metavar="SUBMISSION", help="A folder that `tutti ensemble` wrote.")],
    score: Annotated[float, typer.Option("--score", help="Its public score, higher is better: negate an error.")],
) -> None:
    """Keeps a submission's public score beside its local one, in the study's folder and in MLflow.

    Example: `tutti leaderboard add glue_trio studies/glue_trio/ensembles/auto --score 0.8123`
    """
    from tutti.outputs.submission.leaderboard import Leaderboard, correlation

    config, folder, _ = stores.open_folder(study)
    board = Leaderboard(folder.leaderboard)
    place, entry = board.add(submission, study=config.study, public=score)
    entries = board.entries()
    _show(config.study, entries)
    if stores.is_tracked(config, folder):
        stores.quiet_mlflow()
        from tutti.tracking.artifacts import StudyRun

        metrics = {"leaderboard/public": score}
        if entry.local is not None:
            metrics["leaderboard/local"] = entry.local
        try:
            run = StudyRun(stores.tracking_uri(config, folder), experiment=config.study, owner=folder.owner)
            run.log_metrics(metrics, step=place)
            if (together := correlation(entries)) is not None:
                metrics = {"leaderboard/pearson": together.pearson, "leaderboard/spearman": together.spearman}
                # MLflow shows the value of the highest step; the correlation of all submissions must be that one.
                run.log_metrics(metrics, step=len(entries))
            run.log_files([folder.leaderboard], place="leaderboard")
        except TrackingError as error:  # the study's folder has it already
            console.print(f"Not stored in MLflow: {error}")


@app.command("show")
def show(study: Study) -> None:
    """Shows a study's submissions, the highest public score first, and how public and local scores go together.

    Example: `tutti leaderboard show glue_trio`
    """
    from tutti.outputs.submission.leaderboard import Leaderboard

    config, folder, _ = stores.open_folder(study)
    _show(config.study, Leaderboard(folder.leaderboard).entries())


def _show(study: str, entries: list[Entry]) -> None:
    from rich.table import Table

    from tutti.outputs.formatting import number
    from tutti.outputs.submission.leaderboard import correlation

    if not entries:
        console.print(f"The study {study} has no submissions with public scores; add one with `tutti leaderboard add`.")
        return
    table = Table(title=f"Submissions of the study {study}", title_justify="left")
    for name in ("recipe", "made", "submission"):
        table.add_column(name, overflow="fold")
    for name in ("public", "local", *entries[-1].tasks):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in sorted(entries, key=lambda entry: -entry.public):
        scores = (number(entry.tasks.get(task)) for task in entries[-1].tasks)
        table.add_row(entry.recipe, entry.made, entry.submission, number(entry.public), number(entry.local), *scores)
    console.print(table)
    together = correlation(entries)
    if together is None:
        console.print("A correlation of public and local scores needs three submissions, and scores that differ.")
        return
    console.print(
        f"Public and local scores of {together.submissions} submissions: Pearson {together.pearson:+.3f}, "
        f"Spearman {together.spearman:+.3f}."
    )
