"""Writes a study's results as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.errors import TrackingError
from tutti.workflows import stores
from tutti.workflows.base import StudyBase
from tutti.workflows.electorate import chosen_recipe, electorate_of, pools_of, voting_studies
from tutti.workflows.trials import records
from tutti.workflows.vote import rule_of
from tutti.workflows.waiting import waiting

if TYPE_CHECKING:
    from tutti.outputs.report.report import VoteSection


def report(
    study: StudyBase, recipe: str | None = None, *, others: Sequence[str] = (), out: Path | str | None = None
) -> tuple[Path, ...]:
    """Writes a study on one page: its search, its ensemble, each task class by class, the rows that are disputed.

    The page needs no network, and is kept with the study's run in MLflow. Recipe and others are those of ``ensemble``.

    Args:
        out: a new or empty folder, or that of an earlier report; by default ``report`` in the study.

    Returns:
        The page, then its pictures as PNG files and a listing of them.

    Raises:
        StudyError: if ``out`` holds other files, or the study is unfinished.

    Example:
        >>> page, *pictures = study.report()
    """
    study = study.stored
    config, folder, quiet = study.config, study.folder, study.console.quiet
    with waiting("Drawing up the report", quiet=quiet):
        from tutti.outputs.report.report import write_report
        from tutti.search.pictures import search_pngs

        files = write_report(
            study=config.study,
            tasks=study.prepared.tasks,
            trials=records(study),
            objective=config.search.objectives[0],
            search=search_pngs(stores.database_url(config, folder), name=config.study, owner=stores.owner_of(folder)),
            vote=_vote(study, recipe, others),
            out=folder.report if out is None else Path(out),
        )
    for file in files:
        study.console.print(f"wrote {file}")
    if stores.is_tracked(config, folder):
        try:
            with waiting("Storing it in MLflow", quiet=quiet):
                stores.open_run(config, folder).log_files(files, place="report")
        except TrackingError as error:  # the page is written already
            study.console.print(f"Not stored in MLflow: {error}")
    return files


def _vote(study: StudyBase, recipe: str | None, others: Sequence[str]) -> VoteSection | None:
    """The ensemble's part of the page; none if no trial can vote yet."""
    from tutti.outputs.report.report import vote

    name, chosen = chosen_recipe(study, recipe)
    studies = voting_studies(study, members=chosen.members, others=others)
    bank = electorate_of(studies, members=chosen.members)
    if not bank.records():
        return None
    return vote(
        study=study.name,
        recipe_name=name,
        tasks=study.prepared.tasks,
        bank=bank,
        rule=rule_of(chosen),
        labelling=chosen.pseudo_labels,
        pools=pools_of(studies, study.name),
        validation=study.prepared.validation_rows(),
        folded=study.config.split.folds is not None,
    )
