"""Finds what crashes have left behind in a study that no process runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from shutil import rmtree

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder, TrialFolder
from tutti.data.prepared import load_prepared, texts_hash
from tutti.errors import StorageError, StudyError, counted
from tutti.files import clear_stray, is_inside, storage_faults, strays
from tutti.orchestration.upkeep.budget import has_pruned
from tutti.records import Finding, Repair, TrialRecord, TrialState
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import trial_key
from tutti.tracking.spool import undelivered

YOUNG = 600.0  # seconds since the last change for which a file may still be in use by a living process
# The same for a soup's folder, which does not change while a candidate predicts all validation rows, and for those of
# encodings, which any study on any machine may be writing.
_YOUNG_FOLDER = 86400.0
_UNLINK = "put the folder that it leads to in its place"
_ENDED = {TrialState.STOPPED: "was stopped early", TrialState.FAILED: "failed"}
_WITHOUT = "the trial votes without it, and `tutti predict` and `tutti soup` cannot take it"


def diagnose(
    folder: StudyFolder,
    *,
    folds: int | None,
    store: StudyStore,
    deliver: Callable[[], None],
    runs: Callable[[Sequence[TrialRecord]], Iterable[Finding]],
) -> Iterator[Finding]:
    """Yields what is wrong with a study. The caller may repair each finding before it asks for the next one.

    Repairs never delete a state that a trial could resume from. They delete no weights of a finished trial, except to
    complete an interrupted pruning. The caller holds the study's lock.

    Args:
        folds: the study's.
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
    yield from _prepared_parts(folder)
    trials = store.records()
    yield from _lost_trials(trials)
    yield from _trial_folders(folder, trials, folds)
    yield from _predictions(folder, trials)
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


def _prepared_parts(folder: StudyFolder) -> Iterator[Finding]:
    """Findings for prepared rows that are damaged, missing, or not those that were prepared."""
    remedy = f"remove {folder.data} and run `tutti tune` with --resume, which prepares the rows again"
    try:
        prepared = load_prepared(folder.data)
    except StudyError as error:
        if folder.begun:  # otherwise nothing was prepared yet
            gone = "run `tutti tune` with --resume, which prepares the rows again"
            yield Finding(_inside(folder, folder.data), error.faults[0].got, gone)
        return
    except StorageError as error:
        yield Finding(_inside(folder, folder.data), error.faults[0].got, remedy)
        return
    for task, parts in prepared.parts.items():
        for part, info in parts.items():
            try:
                intact = texts_hash(prepared.rows(task, part)) == info.texts_sha256
                found = "other texts than were prepared"
            except StorageError as error:
                intact, found = False, error.faults[0].got
            if not intact:
                yield Finding(_inside(folder, info.path), found, remedy)


def _lost_trials(trials: Sequence[TrialRecord]) -> Iterator[Finding]:
    """A finding for trials that are not in the database, though later ones are."""
    numbers = {trial.number for trial in trials}
    if lost := sorted(set(range(max(numbers, default=-1))) - numbers):
        remedy = "restore the database from a copy: without it the study can be read, and not resumed"
        problem = f"it lacks {', '.join(map(trial_key, lost))}, and has later trials"
        yield Finding("the study's database", problem, remedy)


def _trial_folders(folder: StudyFolder, trials: Sequence[TrialRecord], folds: int | None) -> Iterator[Finding]:
    """Findings in trials' folders: states of ended trials, and checkpoints that are damaged or missing."""
    keys = {trial.key for trial in trials}
    for path in sorted(folder.trials.glob("*")):
        if path.name not in keys:
            remedy = "move it away: a later trial of this key would go on from it"
            yield Finding(_inside(folder, path), "the study has no such trial", remedy)
        elif path.is_symlink():  # its target may belong to something else
            yield Finding(_inside(folder, path), "a link", _UNLINK)
    for trial in trials:
        if not folder.trial(trial.key).path.is_symlink():
            yield from _trial_folder(folder, trial, folds)


def _trial_folder(folder: StudyFolder, trial: TrialRecord, folds: int | None) -> Iterator[Finding]:
    from tutti.modeling.checkpoint import is_pruned

    own = folder.trial(trial.key)
    has_ended = trial.state is not TrialState.RUNNING
    if has_ended and any(part.resume.is_dir() and not part.resume.is_symlink() for part in own.parts):
        problem = "what it would go on from, and the trial has ended"
        yield Finding(_inside(folder, own.path), problem, Repair("removed", partial(_remove_states, own)))
    for part in own.parts:
        if part.best.is_dir():
            yield from _checkpoint(folder, part, state=trial.state)
    if trial.state is TrialState.FINISHED:
        for best in (part.best for part in ([own] if folds is None else map(own.fold, range(folds)))):
            if not best.is_dir() and not is_pruned(best):
                note = f"make the empty file {_inside(folder, best)}.pruned.json, which gives the trial's weights up"
                problem = f"it is gone, and nothing says that it was pruned: {_WITHOUT}"
                yield Finding(_inside(folder, best), problem, f"restore it from a copy, or {note}")


def _checkpoint(folder: StudyFolder, part: TrialFolder, *, state: TrialState) -> Iterator[Finding]:
    from tutti.modeling.checkpoint import METADATA, check_checkpoint, is_pruned

    best, has_ended = part.best, state is not TrialState.RUNNING
    what = _inside(folder, best)
    if has_ended and not best.is_symlink() and not (best / METADATA).is_file():
        problem = f"half a checkpoint: it has no {METADATA}"
        if state in _ENDED or is_pruned(best):
            yield Finding(what, problem, Repair("removed", partial(_remove, best)))
        else:  # its weights may be whole, but only the metadata file could prove it
            remedy = f"restore {METADATA} from a copy, or remove the folder and look again"
            yield Finding(what, f"{problem}: {_WITHOUT}", remedy)
        return
    try:
        check_checkpoint(best)
    except StorageError as error:
        if has_ended:
            remedy = "restore it from a copy, or remove it and look again: ensembles need the bank alone"
        elif not any(part.resume.glob("stage-*")):
            return  # the trial restarts, and replaces it
        else:
            remedy = "restore it from a copy, or remove the folder of the trial, which then begins anew"
        yield Finding(what, f"a damaged checkpoint: {error.faults[0].what}: {error.faults[0].got}", remedy)


def _predictions(folder: StudyFolder, trials: Sequence[TrialRecord]) -> Iterator[Finding]:
    """Findings in the bank: entries that nothing should read, and predictions that are missing."""
    bank = Bank(folder.bank)
    try:
        checkpoints = {record.key: record.path for record in bank.records()}
    except StorageError as error:  # the metadata of one entry; without it the whole bank is unreadable
        fault = error.faults[0]
        file = Path(fault.what)
        what = _inside(folder, file) if file.is_relative_to(folder.path) else fault.what
        yield Finding(what, f"{fault.got}: the bank cannot be read with it", fault.remedy)
        return
    for leftover in bank.leftovers():
        problem = "half of a trial's predictions, or replaced ones"
        if not is_inside(folder.bank / leftover, folder.path):
            yield Finding(f"bank/{leftover}", f"{problem}, behind a link", _UNLINK)
            continue
        yield Finding(f"bank/{leftover}", problem, Repair("removed", partial(bank.discard, leftover)))
    for key in sorted(checkpoints.keys() - {trial.key for trial in trials}):
        yield Finding(f"bank/{key}", "the study has no such trial", "move it away: it votes in ensembles")
    for trial in trials:
        what, is_own = f"bank/{trial.key}", is_inside(folder.bank / trial.key, folder.path)
        if trial.state in _ENDED and trial.key in checkpoints:
            problem = f"it votes in ensembles, and the trial {_ENDED[trial.state]}"
            if is_own:
                yield Finding(what, problem, Repair("removed", partial(bank.remove, trial.key)))
            else:
                yield Finding(what, f"{problem}, behind a link", _UNLINK)
        if trial.state is TrialState.FINISHED:
            try:
                bank.check(trial.key)
            except StorageError as error:
                got, remedy = (
                    error.faults[0].got if trial.key in checkpoints else "no entry",
                    "restore them from a copy",
                )
                if any((folder.bank / trial.key).glob("*")):
                    remedy += ", or move them away: the trial has no vote then"
                else:  # nothing makes them anew
                    remedy += "; until then the trial has no vote, and all else goes on without it"
                yield Finding(what, f"no whole predictions: {got}", remedy)
            if is_own and checkpoints.get(trial.key) and has_pruned(folder.trial(trial.key)):
                forget = partial(bank.forget_weights, trial.key)
                yield Finding(what, "it names weights that were pruned", Repair("put right", forget))


def _remove_states(trial: TrialFolder) -> None:
    for part in trial.parts:
        if part.resume.is_dir() and not part.resume.is_symlink():
            _remove(part.resume)


def _remove(path: Path) -> None:
    with storage_faults(path):
        rmtree(path)


def _inside(folder: StudyFolder, path: Path) -> str:
    """A path in the study's folder, or in the cache beside it, as it is shown."""
    place = folder.path.parent if path.is_relative_to(folder.encoded) else folder.path
    return path.relative_to(place).as_posix()
