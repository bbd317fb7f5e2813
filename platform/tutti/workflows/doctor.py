"""Finds and repairs what crashes have left behind in a study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from tutti.errors import Fault, TrackingError, TuttiError
from tutti.records import Finding, Repair, TrialRecord
from tutti.workflows import stores
from tutti.workflows.base import StudyBase
from tutti.workflows.progress import cut_off

if TYPE_CHECKING:
    from rich.console import Console

    from tutti.config.folder import StudyFolder
    from tutti.config.study import StudyConfig


@dataclass(frozen=True)
class Diagnosis:
    """What ``doctor`` found.

    Attributes:
        mended: how many findings were mended, or would be in a dry run.
        left: how many it cannot mend.
        interrupted: keys of trials that were cut off, which ``tune`` goes on with.
    """

    mended: int
    left: int
    interrupted: tuple[str, ...]


def doctor(study: StudyBase, *, dry_run: bool = False) -> Diagnosis:
    """Finds and mends what crashes have left of a study that nobody runs, and prints what it did.

    Nothing that a trial could go on from is removed.

    Args:
        dry_run: whether to show only, and to change nothing.

    Raises:
        StudyError: if another process runs the study.

    Example:
        >>> study.doctor(dry_run=True).left
    """
    from tutti.orchestration.upkeep.doctor import diagnose
    from tutti.orchestration.upkeep.lock import study_lock

    study = study.stored
    config, folder = study.config, study.folder
    with study_lock(folder), closing(stores.load_store(config, folder, mend=not dry_run)) as store:
        findings = diagnose(
            folder,
            store=store,
            deliver=lambda: _deliver(config, folder),
            runs=lambda trials: _runs(config, folder, trials, seconds=store.run_seconds()),
        )
        mended, left = _mend_all(findings, dry_run=dry_run, console=study.console)
        interrupted = tuple(proposal.key for proposal in store.unfinished())
    return Diagnosis(mended, left, interrupted)


def _mend_all(findings: Iterable[Finding], *, dry_run: bool, console: Console) -> tuple[int, int]:
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


def _deliver(config: StudyConfig, folder: StudyFolder) -> None:
    """Delivers the queued reports to MLflow."""
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
    from tutti.search.limits import is_over
    from tutti.tracking.repair import artifact_findings, run_findings

    complete = is_over(config.search, trials, seconds=seconds)
    uri, trials = stores.tracking_uri(config, folder), cut_off(trials)
    runs = run_findings(uri, experiment=config.study, owner=folder.owner, trials=trials, complete=complete)
    return chain(artifact_findings(uri, place=folder.mlflow_artifacts) if uri == folder.mlflow_uri else [], runs)
