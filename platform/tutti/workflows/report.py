"""Writes a study's results as one HTML page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.config.address import to_read, without_password
from tutti.errors import Fault, StudyError, TrackingError
from tutti.files import write_whole
from tutti.records import TrialState
from tutti.workflows import stores
from tutti.workflows.base import StudyBase
from tutti.workflows.console import study_argument
from tutti.workflows.electorate import chosen_recipe, poll_of, pools_of, voting_studies
from tutti.workflows.trials import is_running, records
from tutti.workflows.waiting import waiting

if TYPE_CHECKING:
    from tutti.outputs.report.report import Search, VoteSection

WATCH_SECONDS = 30
_PORT = 5000  # at which links lead to the study's own MLflow, which runs only while somebody looks


def report(
    study: StudyBase,
    recipe: str | None = None,
    *,
    others: Sequence[str] = (),
    out: Path | str | None = None,
    errors: Path | str | None = None,
    watch: bool = False,
) -> tuple[Path, ...]:
    """Writes a study on one page: its search, its vote, each task class by class, the rows whose labels to check.

    The page needs no network, and is kept with the study's run in MLflow. Recipe and others are those of ``ensemble``.

    Args:
        out: a new or empty folder, or that of an earlier report; by default ``report`` in the study.
        errors: a CSV file to write: every validation row that the vote has wrong, the surest first, with what each
            member says and an empty column for a new label.
        watch: whether to write the page anew as long as the study runs; the page then reloads itself.

    Returns:
        The page, a listing with its hash, and ``errors``.

    Raises:
        StudyError: if ``out`` holds other files, ``errors`` is a file with new labels, or the study is unfinished.

    Example:
        >>> page, *_ = study.report(errors="errors.csv")
    """
    study = study.stored
    if errors is not None:
        _check_errors(Path(errors))
    config, folder, quiet = study.config, study.folder, study.console.quiet
    place = folder.report if out is None else Path(out)
    if watch and is_running(study):
        study.console.print(
            f"Writing {place / 'report.html'} every {WATCH_SECONDS} s while the study runs; Ctrl-C ends it"
        )
    while watch and is_running(study):
        _write(study, recipe, others, place, refresh=WATCH_SECONDS, say=lambda _: None)
        for _ in range(WATCH_SECONDS):
            if is_running(study):
                time.sleep(1)
    with waiting("Drawing up the report", quiet=quiet) as say:
        files, vote = _write(study, recipe, others, place, refresh=None, say=say)
    if errors is not None and vote is None:
        study.console.print(f"No trial votes, so that no row is wrong or right: {errors} is not written.")
    elif errors is not None and vote is not None:
        write_whole(Path(errors), vote.errors.to_csv(index=False))
        files = (*files, Path(errors))
    for file in files:
        study.console.print(f"wrote {file}")
    if stores.is_tracked(config, folder):
        try:
            with waiting("Storing it in MLflow", quiet=quiet):
                run = stores.open_run(config, folder)
                run.log_files(files[:2], place="report")
                run.describe_by(f"report/{files[0].name}", what="The study's report")
        except TrackingError as error:  # the page is written already
            study.console.print(f"Not stored in MLflow: {error}")
    return files


def _check_errors(file: Path) -> None:
    """Raises StudyError where labels were filled in, or the file is another one: it would be lost."""
    if not file.exists():
        return
    import pandas as pd

    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False)
        empty = not len(table.columns) or not (table["new_label"].str.strip() != "").any()
        got = "one with labels in the column new_label"
    except (OSError, ValueError, KeyError, pd.errors.ParserError):
        empty, got = file.is_file() and not file.read_bytes().strip(), "another file"
    if not empty:
        raise StudyError(Fault(f"--errors {file}", "be a new file, or one without new labels", got, "name another one"))


def _write(
    study: StudyBase,
    recipe: str | None,
    others: Sequence[str],
    out: Path,
    *,
    refresh: int | None,
    say: Callable[[str], object],
) -> tuple[tuple[Path, ...], VoteSection | None]:
    from tutti.outputs.report.report import write_report

    vote = _vote(study, recipe, others, say)
    say("Drawing up the report")
    tasks, search = study.prepared.tasks, _search(study)
    return write_report(study=study.name, tasks=tasks, search=search, vote=vote, out=out, refresh=refresh), vote


def _search(study: StudyBase) -> Search:
    from tutti.outputs.report.report import Search
    from tutti.search.importances import importances

    config, folder, trials = study.config, study.folder, records(study)
    finished = sum(trial.state is TrialState.FINISHED for trial in trials)
    url = stores.database_url(config, folder)
    links, need = _links(study) if trials else ({}, None)
    return Search(
        trials=trials,
        objectives=config.search.objectives,
        importances=importances(url, name=config.study, owner=stores.owner_of(folder)) if finished > 1 else {},
        evals_per_epoch=config.evals_per_epoch,
        folds=config.split.folds,
        links=links,
        links_need=need,
    )


def _links(study: StudyBase) -> tuple[dict[str, str], str | None]:
    """The trials' pages in MLflow by key, and the command that serves them, if it has to be started."""
    config, folder = study.config, study.folder
    if not stores.is_tracked(config, folder):
        return {}, None
    stores.quiet_mlflow()
    from tutti.tracking.links import run_page, start_page
    from tutti.tracking.run_filter import run_pages

    uri = to_read(stores.tracking_uri(config, folder))
    served = uri.startswith(("http://", "https://"))

    def page(experiment: str, run: str) -> str:
        if served:
            return f"{without_password(uri).rstrip('/')}/{run_page(experiment, run)}"
        return start_page(f"http://127.0.0.1:{_PORT}", experiment, run)

    try:
        pages = run_pages(uri, experiment=study.name, page=page, owner=folder.owner)
    except TrackingError:  # a report needs no MLflow
        return {}, None
    return pages, None if served else f"tutti ui {study_argument(folder)} --port {_PORT}"


def _vote(
    study: StudyBase, recipe: str | None, others: Sequence[str], say: Callable[[str], object]
) -> VoteSection | None:
    """The ensemble's part of the page; none if no trial can vote yet."""
    from tutti.outputs.report.report import vote

    name, chosen = chosen_recipe(study, recipe)
    studies = voting_studies(study, members=chosen.members, others=others)
    poll = poll_of(studies, chosen, name=name, say=say)
    if not poll.bank.records():
        return None
    return vote(poll, labelling=chosen.pseudo_labels, pools=pools_of(studies, study.name))
