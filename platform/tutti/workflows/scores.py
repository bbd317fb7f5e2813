"""Public scores of a study's submissions beside their local ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tutti.errors import TrackingError
from tutti.workflows import stores
from tutti.workflows.base import StudyBase

if TYPE_CHECKING:
    from tutti.outputs.submission.leaderboard import Entry


def leaderboard(study: StudyBase) -> list[Entry]:
    """The submissions whose public scores were added, in that order, each with its public and its local score.

    Raises:
        StorageError: if the study's file of them cannot be read.
    """
    from tutti.outputs.submission.leaderboard import Leaderboard

    return Leaderboard(study.folder.leaderboard).entries()


def add_public_score(study: StudyBase, submission: Path | str, score: float) -> list[Entry]:
    """Keeps a submission's public score beside its local one, in the study's folder and in MLflow.

    Args:
        submission: a folder that ``Vote.write`` wrote.
        score: higher is better: negate an error.

    Returns:
        ``leaderboard`` with it.

    Raises:
        StudyError: if the folder is no submission of the study, or its files have changed.

    Example:
        >>> study.add_public_score("studies/glue_trio/ensembles/auto", 0.8123)
    """
    from tutti.outputs.submission.leaderboard import Leaderboard, correlation

    study = study.stored
    config, folder = study.config, study.folder
    study.prepared  # noqa: B018 - a study without rows has no submissions
    board = Leaderboard(folder.leaderboard)
    place, entry = board.add(Path(submission), study=config.study, public=score)
    entries = board.entries()
    if stores.is_tracked(config, folder):
        metrics = {"leaderboard/public": score}
        if entry.local is not None:
            metrics["leaderboard/local"] = entry.local
        try:
            run = stores.open_run(config, folder)
            run.log_metrics(metrics, step=place)
            if (together := correlation(entries)) is not None:
                metrics = {"leaderboard/pearson": together.pearson, "leaderboard/spearman": together.spearman}
                # MLflow shows the value of the highest step; the correlation of all submissions must be that one.
                run.log_metrics(metrics, step=len(entries))
            run.log_files([folder.leaderboard], place="leaderboard")
        except TrackingError as error:  # the study's folder has it already
            study.console.print(f"Not stored in MLflow: {error}")
    return entries
