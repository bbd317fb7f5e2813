"""``tutti doctor``: finds and repairs what crashes have left behind in a study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from tutti.cli import stores
from tutti.cli.browse import Study
from tutti.cli.console import console, program
from tutti.config.folder import find_study
from tutti.config.load import parse_study
from tutti.errors import Fault, TrackingError, TuttiError, counted
from tutti.records import Finding, Repair, TrialRecord

if TYPE_CHECKING:
    from tutti.config.folder import StudyFolder
    from tutti.config.study import StudyConfig


def doctor(
    study: Study, dry_run: Annotated[bool, typer.Option("--dry-run", help="Show only, and change nothing.")] = False
) -> None:
    """Finds and mends what crashes have left of a study that nobody runs, and says what it did.

    Nothing that a trial could go on from is removed. Exit code 1 where something is left that it cannot mend.

    Example: `tutti doctor glue_trio --dry-run`
    """
    from tutti.orchestration.upkeep.doctor import diagnose
    from tutti.orchestration.upkeep.lock import study_lock

    folder = find_study(study)
    config = parse_study(folder.study_file)
    with study_lock(folder), closing(stores.load_store(config, folder, mend=not dry_run)) as store:
        findings = diagnose(
            folder,
            store=store,
            deliver=lambda: _deliver(config, folder),
            runs=lambda trials: _runs(config, folder, trials, seconds=store.run_seconds()),
        )
        mended, left = _mend_all(findings, dry_run=dry_run)
        interrupted = [proposal.key for proposal in store.unfinished()]
    for key in interrupted:
        command = f"{program()} tune STUDY.yaml --resume"
        console.print(f"trial {key}: cut off, and goes on with `{command}`, and --set as before")
    console.print(_summary(config.study, mended, left, dry_run=dry_run))
    if left:
        raise typer.Exit(1)


def _mend_all(findings: Iterable[Finding], *, dry_run: bool) -> tuple[int, int]:
    """Mends each finding and prints the outcome; returns how many were mended (or can be) and how many remain."""
    mended = left = 0
    try:
        for finding in findings:
            remedy = finding.remedy
            try:
                if isinstance(remedy, Repair) and not dry_run:
                    remedy.run()
            except TuttiError as error:
                remedy = str(error)
            if isinstance(remedy, Repair):
                mended += 1
                outcome = f"{'to be ' * dry_run}{remedy.outcome}"
                console.print(f"{finding.what}: {finding.found}; {outcome}")
            else:
                left += 1
                console.print(f"{finding.what}: {finding.found}; left: {remedy}", style="red")
    except TrackingError as error:  # MLflow is looked at last: everything else is done by now
        left += 1
        console.print(f"MLflow was not checked: {error}", style="red")
    return mended, left


def _summary(name: str, mended: int, left: int, *, dry_run: bool) -> str:
    if not mended and not left:
        return f"The study {name} is healthy."
    done = f"{counted(mended, 'finding')} {'to be ' * dry_run}mended"
    return f"Study {name}: {done}, {left} left."


def _deliver(config: StudyConfig, folder: StudyFolder) -> None:
    """Delivers the queued reports to MLflow.

    Raises:
        TrackingError: if some could not be delivered.
    """
    if undelivered := stores.open_tracker(config, folder).close(timeout=60.0):
        got, remedy = f"{undelivered} that still wait", "check whether the store is up, and try again"
        raise TrackingError(Fault("MLflow", "take the reports that wait for it", got, remedy))


def _runs(
    config: StudyConfig, folder: StudyFolder, trials: Sequence[TrialRecord], *, seconds: float
) -> Iterable[Finding]:
    """What is wrong with the study's runs in MLflow; nothing if there is no store yet."""
    if not stores.is_tracked(config, folder):
        return []
    stores.quiet_mlflow()
    from tutti.cli.progress import cut_off
    from tutti.search.limits import is_over
    from tutti.tracking.repair import run_findings

    complete = is_over(config.search, trials, seconds=seconds)
    uri, trials = stores.tracking_uri(config, folder), cut_off(trials)
    return run_findings(uri, experiment=config.study, owner=folder.owner, trials=trials, complete=complete)
