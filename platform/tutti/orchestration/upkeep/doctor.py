"""Finds what crashes have left behind in a study that no process runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from shutil import rmtree

from tutti import mirror
from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.errors import counted
from tutti.files import clear_stray, is_inside, storage_faults, strays
from tutti.orchestration.upkeep.budget import has_pruned
from tutti.records import Finding, Repair, TrialRecord, TrialState
from tutti.search.study_store import StudyStore
from tutti.tracking.spool import undelivered

YOUNG = 600.0  # seconds since the last change for which a file may still be in use by a living process
# The same for a soup's folder, which does not change while a candidate predicts all validation rows, and for those of
# encodings, which any study on any machine may be writing.
_YOUNG_FOLDER = 86400.0
_ENDED = {TrialState.STOPPED: "was stopped early", TrialState.FAILED: "failed"}


def diagnose(
    folder: StudyFolder,
    *,
    store: StudyStore,
    deliver: Callable[[], None],
    runs: Callable[[Sequence[TrialRecord]], Iterable[Finding]],
) -> Iterator[Finding]:
    """Yields what is wrong with a study. The caller may repair each finding before it asks for the next one.

    Repairs never delete a state that a trial could resume from. They delete no weights of a finished trial, except to
    complete an interrupted pruning. The caller holds the study's lock.

    Args:
        deliver: sends queued reports to the tracker.
        runs: finds what is wrong with the tracker's runs, given all trials; called last.

    Raises:
        StorageError: if the folder or the database cannot be read.
        TrackingError: from ``runs``.
    """
    shared = [] if folder.encoded.is_symlink() else strays(folder.encoded)
    for stray in (*strays(folder.path), *shared):
        if _may_be_written(folder, stray):
            continue
        is_replaced = stray.suffix == ".old"
        what = "what was being replaced by a process" if is_replaced else "what was being written by a process"
        outcome = "put back, or removed where it has been replaced" if is_replaced else "removed"
        yield Finding(_inside(folder, stray), f"{what} that died", Repair(outcome, partial(clear_stray, stray)))
    trials = store.records()
    for trial in trials:
        if trial.state is not TrialState.RUNNING:
            yield from _trial_folder(folder, trial)
    yield from _predictions(folder, trials)
    for place in (folder.trials, folder.bank):  # commands may be writing elsewhere
        for part, sweep in mirror.leftovers(place).items():
            yield Finding(part, "what uploads that were killed have left", Repair("removed", sweep))
    spool = folder.spool
    if waiting := undelivered(spool):
        problem = f"{counted(waiting, 'report')} that MLflow has not received"
        yield Finding(spool.name, problem, Repair("sent to MLflow", deliver))
    yield from runs(trials)


def _may_be_written(folder: StudyFolder, stray: Path) -> bool:
    """Whether a living process may be writing it.

    Training holds the study's lock; ensembling, reports and encodings for other studies do not.
    """
    if stray.is_relative_to(folder.trials) or stray.is_relative_to(folder.bank):
        return False
    is_slow = stray.is_relative_to(folder.encoded) or (stray.is_relative_to(folder.soups) and stray.suffix == ".tmp")
    young_seconds = _YOUNG_FOLDER if is_slow else YOUNG
    try:
        changed = max(path.lstat().st_mtime for path in (stray, *stray.glob("*")))
        return time.time() - changed < young_seconds
    except FileNotFoundError:  # its writer has just moved it to its final name
        return True


def _trial_folder(folder: StudyFolder, trial: TrialRecord) -> Iterator[Finding]:
    """Findings in an ended trial's folder: its states, and half a checkpoint that is not needed."""
    from tutti.modeling.checkpoint import METADATA, is_pruned

    own, inside = folder.trial(trial.key), partial(is_inside, folder=folder.path)  # not behind a link
    if states := [part.resume for part in own.parts if part.resume.is_dir() and inside(part.resume)]:
        problem = "what it would go on from, and the trial has ended"
        yield Finding(_inside(folder, own.path), problem, Repair("removed", partial(_remove, *states)))
    for best in (part.best for part in own.parts if part.best.is_dir() and inside(part.best)):
        if not (best / METADATA).is_file() and (trial.state in _ENDED or is_pruned(best)):
            problem = f"half a checkpoint: it has no {METADATA}"
            yield Finding(_inside(folder, best), problem, Repair("removed", partial(_remove, best)))


def _predictions(folder: StudyFolder, trials: Sequence[TrialRecord]) -> Iterator[Finding]:
    """Findings in the bank: entries that nothing should read, and weights that it does not know to be pruned."""
    bank = Bank(folder.bank)
    checkpoints = {record.key: record.path for record in bank.records()}
    for leftover in bank.leftovers():
        problem = "half of a trial's predictions, or replaced ones"
        if is_inside(folder.bank / leftover, folder.path):  # not behind a link
            yield Finding(f"bank/{leftover}", problem, Repair("removed", partial(bank.discard, leftover)))
    for trial in (trial for trial in trials if is_inside(folder.bank / trial.key, folder.path)):
        what = f"bank/{trial.key}"
        if trial.state in _ENDED and trial.key in checkpoints:
            problem = f"it votes in ensembles, and the trial {_ENDED[trial.state]}"
            yield Finding(what, problem, Repair("removed", partial(bank.remove, trial.key)))
        if checkpoints.get(trial.key) and has_pruned(folder.trial(trial.key)):
            forget = partial(bank.forget_weights, trial.key)
            yield Finding(what, "it names weights that were pruned", Repair("put right", forget))


def _remove(*paths: Path) -> None:
    for path in paths:
        with storage_faults(path):
            rmtree(path)


def _inside(folder: StudyFolder, path: Path) -> str:
    """A path in the study's folder, or in the cache beside it, as it is shown."""
    place = folder.path.parent if path.is_relative_to(folder.encoded) else folder.path
    return path.relative_to(place).as_posix()
