"""Looks through a study that no process holds for what crashes have left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from shutil import rmtree

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.errors import StorageError, counted
from tutti.files import clear_stray, is_inside, storage_faults, strays
from tutti.orchestration.folds import forget_states
from tutti.records import Finding, TrialRecord, TrialState
from tutti.search.study_store import StudyStore
from tutti.tracking.spool import undelivered

YOUNG = 600.0  # seconds that a file is taken to be written by a living process
_YOUNG_SOUP = 86400.0  # nothing in its folder changes while one of its means predicts all validation rows
_UNLINK = "put the folder that it leads to in its place"
_ENDED = {TrialState.STOPPED: "was stopped early", TrialState.FAILED: "failed"}
_WITHOUT = "the trial votes without it, and `tutti predict` and `tutti soup` cannot take it"


def look(
    folder: StudyFolder,
    *,
    store: StudyStore,
    deliver: Callable[[], None],
    runs: Callable[[Sequence[TrialRecord]], Iterable[Finding]],
) -> Iterator[Finding]:
    """What is wrong with a study, one after the other: each may be mended before the next is asked for.

    Nothing that a trial could go on from is ever removed, nor weights of one that finished, but for those whose pruning
    was cut off. The caller holds the study's lock.

    Args:
        deliver: sends the reports that wait to the tracker.
        runs: what is wrong with the tracker's runs, given all trials; asked for last.

    Raises:
        StorageError: where the folder or the database cannot be read.
        TrackingError: what ``runs`` raises.
    """
    for stray in strays(folder.path):
        if _may_be_written(folder, stray):
            continue
        retired = stray.suffix == ".old"
        what = "what was being replaced by a process" if retired else "what was being written by a process"
        mended = "put back, or removed where it has been replaced" if retired else "removed"
        yield Finding(_inside(folder, stray), f"{what} that died", mended, partial(clear_stray, stray))
    trials = store.records()
    yield from _places(folder, trials)
    yield from _predictions(folder, trials)
    spool = folder.path / "tracking.jsonl"
    if waiting := undelivered(spool):
        sent = "sent to MLflow"
        yield Finding(spool.name, f"{counted(waiting, 'report')} that MLflow was not told", sent, deliver)
    yield from runs(trials)


def _may_be_written(folder: StudyFolder, stray: Path) -> bool:
    """Whether a living process may be at it: those that vote or write reports hold no lock, unlike those that train."""
    room = stray.relative_to(folder.path).parts[0]
    if room in ("trials", "bank"):
        return False
    young = _YOUNG_SOUP if room == folder.soups.name and stray.suffix == ".tmp" else YOUNG
    try:
        return time.time() - stray.lstat().st_mtime < young
    except FileNotFoundError:  # it has just been put in its place
        return True


def _places(folder: StudyFolder, trials: Sequence[TrialRecord]) -> Iterator[Finding]:
    """Of trials' own folders: states of those that have ended, and checkpoints that are not whole or gone."""
    known = {trial.key for trial in trials}
    for place in sorted((folder.path / "trials").glob("*")):
        if place.name not in known:
            remedy = "move it away: a later trial of this key would go on from it"
            yield Finding(_inside(folder, place), "the study has no such trial", remedy)
        elif place.is_symlink():  # what it leads to is not the study's
            yield Finding(_inside(folder, place), "a link", _UNLINK)
    for trial in trials:
        place = folder.trial(trial.key)
        if place.is_symlink():
            continue
        ended = trial.state is not TrialState.RUNNING
        states = [path / "resume" for path in (place, *_folds(place))]
        if ended and any(path.is_dir() and not path.is_symlink() for path in states):
            found = "what it would go on from, and the trial has ended"
            yield Finding(_inside(folder, place), found, "removed", partial(forget_states, place))
        for best in (path / "best" for path in (place, *_folds(place))):
            if best.is_dir():
                yield from _checkpoint(folder, best, state=trial.state)
        if trial.state is TrialState.FINISHED:
            for best in (path / "best" for path in sorted(place.glob("fold-*")) or [place]):
                if not best.is_dir() and not _is_pruned(best):
                    note = f"make the empty file {_inside(folder, best)}.pruned.json, which says that it was given up"
                    found = f"it is gone, and nothing says that it was pruned: {_WITHOUT}"
                    yield Finding(_inside(folder, best), found, f"restore it from a copy, or {note}")


def _folds(place: Path) -> list[Path]:
    return sorted(path for path in place.glob("fold-*") if path.is_dir() and not path.is_symlink())


def _checkpoint(folder: StudyFolder, best: Path, *, state: TrialState) -> Iterator[Finding]:
    from tutti.modeling.checkpoint import METADATA, check_checkpoint

    what, ended = _inside(folder, best), state is not TrialState.RUNNING
    if ended and not best.is_symlink() and not (best / METADATA).is_file():
        half = f"half a checkpoint: it has no {METADATA}"
        if state in _ENDED or _is_pruned(best):
            yield Finding(what, half, "removed", partial(_remove, best))
        else:  # its weights may be whole: only that file could say so, and nothing else says what they are
            remedy = f"restore {METADATA} from a copy, or remove the folder and look again"
            yield Finding(what, f"{half}: {_WITHOUT}", remedy)
        return
    try:
        check_checkpoint(best)
    except StorageError as error:
        if ended:
            remedy = "restore it from a copy, or remove it and look again: ensembles need the bank alone"
        elif not any((best.parent / "resume").glob("stage-*")):
            return  # the trial begins anew, and writes it anew
        else:
            remedy = "restore it from a copy, or remove the folder of the trial, which then begins anew"
        yield Finding(what, f"a damaged checkpoint: {error.faults[0].what}: {error.faults[0].got}", remedy)


def _predictions(folder: StudyFolder, trials: Sequence[TrialRecord]) -> Iterator[Finding]:
    """Of the bank: what nothing reads, and what should be there."""
    bank = Bank(folder.bank)
    try:
        paths = {record.key: record.path for record in bank.records()}
    except StorageError as error:  # one entry's metadata, without which the bank answers nothing
        fault = error.faults[0]
        file = Path(fault.what)
        what = _inside(folder, file) if file.is_relative_to(folder.path) else fault.what
        yield Finding(what, f"{fault.got}: the bank cannot be read with it", fault.remedy)
        return
    for leftover in bank.leftovers():
        found = "half of a trial's predictions, or replaced ones"
        if not is_inside(folder.bank / leftover, folder.path):
            yield Finding(f"bank/{leftover}", f"{found}, behind a link", _UNLINK)
            continue
        yield Finding(f"bank/{leftover}", found, "removed", partial(bank.discard, leftover))
    known, held = {trial.key for trial in trials}, paths.keys()
    for key in sorted(held - known):
        yield Finding(f"bank/{key}", "the study has no such trial", "move it away: it votes in ensembles")
    for trial in trials:
        if trial.state in (TrialState.STOPPED, TrialState.FAILED) and trial.key in held:
            place, found = f"bank/{trial.key}", f"it votes in ensembles, and the trial {_ENDED[trial.state]}"
            if is_inside(folder.bank / trial.key, folder.path):
                yield Finding(place, found, "removed", partial(bank.remove, trial.key))
            else:
                yield Finding(place, f"{found}, behind a link", _UNLINK)
        if trial.state is TrialState.FINISHED:
            try:
                bank.check(trial.key)
            except StorageError as error:
                got = error.faults[0].got
                remedy = "restore them from a copy, or move them away: the trial has no vote then"
                yield Finding(f"bank/{trial.key}", f"no whole predictions: {got}", remedy)
            own = folder.trial(trial.key)
            pruned = any(_is_pruned(path / "best") for path in (own, *_folds(own)))
            if pruned and paths.get(trial.key) and is_inside(folder.bank / trial.key, folder.path):
                forget = partial(bank.forget_weights, trial.key)
                yield Finding(f"bank/{trial.key}", "it names weights that were pruned", "put right", forget)


def _remove(path: Path) -> None:
    with storage_faults(path):
        rmtree(path)


def _is_pruned(best: Path) -> bool:
    from tutti.modeling.checkpoint import is_pruned

    return is_pruned(best)


def _inside(folder: StudyFolder, path: Path) -> str:
    return path.relative_to(folder.path).as_posix()
