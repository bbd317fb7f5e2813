"""``tutti report``: writes a study's results as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutti.cli import stores
from tutti.cli.browse import Study
from tutti.cli.console import console
from tutti.cli.electorate import With, electorate_of, pools_of, voting_studies
from tutti.cli.paths import local
from tutti.cli.vote import RecipeName, rule_of
from tutti.cli.waiting import waiting
from tutti.config.load import load_recipe
from tutti.errors import TrackingError

if TYPE_CHECKING:
    from tutti.config.folder import StudyFolder
    from tutti.config.study import StudyConfig
    from tutti.data.prepared import Prepared
    from tutti.outputs.report.report import VoteSection

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where to write; by default `report` in the study.", callback=local),
]


def report(study: Study, recipe: RecipeName = None, others: With = None, out: Out = None) -> None:
    """Writes a study on one page: its search, its ensemble, each task class by class, the rows that are disputed.

    The page needs no network, reads on a phone, and is kept with the study's run in MLflow.

    Example: `tutti report glue_trio --recipe auto`
    """
    with waiting("Drawing up the report"):
        from tutti.orchestration.upkeep.lock import is_running
        from tutti.outputs.report.report import write_report
        from tutti.search.pictures import search_pngs

        config, folder, prepared = stores.open_folder(study)
        with closing(stores.load_store(config, folder)) as store:
            trials = store.records()
        if not is_running(folder):
            from tutti.cli.progress import cut_off

            trials = cut_off(trials)
        target = out or folder.report
        files = write_report(
            study=config.study,
            tasks=prepared.tasks,
            trials=trials,
            objective=config.search.objectives[0],
            search=search_pngs(stores.database_url(config, folder), name=config.study, owner=stores.owner_of(folder)),
            vote=_vote(config, folder, prepared, recipe, others or ()),
            out=target,
        )
    for file in files:
        console.print(f"wrote {file}")
    if stores.is_tracked(config, folder):
        stores.quiet_mlflow()
        try:
            with waiting("Storing it in MLflow"):
                from tutti.tracking.artifacts import StudyRun

                run = StudyRun(stores.tracking_uri(config, folder), experiment=config.study, owner=folder.owner)
                run.log_files(files, place="report")
        except TrackingError as error:  # the page is written already
            console.print(f"Not stored in MLflow: {error}")


def _vote(
    config: StudyConfig, folder: StudyFolder, prepared: Prepared, recipe: str | None, others: Sequence[str]
) -> VoteSection | None:
    """The ensemble's part of the page; none if no trial can vote yet."""
    from tutti.outputs.report.report import vote

    name, chosen = load_recipe(config.ensemble.recipe if recipe is None else recipe)
    studies = voting_studies(config, folder, prepared, members=chosen.members, others=others)
    bank = electorate_of(studies, members=chosen.members)
    if not bank.records():
        return None
    return vote(
        study=config.study,
        recipe_name=name,
        tasks=prepared.tasks,
        bank=bank,
        rule=rule_of(chosen),
        labelling=chosen.pseudo_labels,
        pools=pools_of(studies, config.study),
        validation=prepared.validation_rows(),
        folded=config.split.folds is not None,
    )
