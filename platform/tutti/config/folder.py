"""The layout of a study's folder and of its trials' folders, and the lookup of a study by name."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutti.config.address import address_fault
from tutti.copies import address_of, working_copies
from tutti.errors import Fault, StudyError, nearest
from tutti.files import is_inside, is_plain, storage_faults
from tutti.mirror import pull, study_names
from tutti.objects import is_address


def studies_folder() -> Path:
    """The folder of all studies if the study file names none: ``$TUTTI_STUDIES``, or ``./studies``.

    Of studies on object storage it is that of their working copies.

    Raises:
        StudyError: if the variable holds another address.
    """
    path = os.environ.get("TUTTI_STUDIES") or "studies"
    if is_address(path):
        return working_copies(path)
    if fault := address_fault(path, what="$TUTTI_STUDIES"):
        raise StudyError(fault)
    return Path(path).absolute()


def fold_name(fold: int) -> str:
    """The name of a fold, counted from 0: of its folder within the trial's, and at the end of its key."""
    return f"fold-{fold}"


def sqlite_url(file: Path) -> str:
    """The SQLAlchemy URL of a SQLite file: ``%`` begins an escape there, and ``?`` the query."""
    return f"sqlite:///{str(file).replace('%', '%25').replace('?', '%3F')}"


class Place:
    """A path in a folder: of a folder that has ``data = Place("data")``, ``data`` is its ``path / "data"``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Any, owner: type) -> Path:
        place: Path = folder.path / self._name
        return place


@dataclass(frozen=True)
class TrialFolder:
    """The folder of one trial, or of one fold of a trial. Creating this object creates no files."""

    path: Path

    best = Place("best")
    """The best checkpoint so far. A trial with folds has one in each fold's folder instead."""
    resume = Place("resume")
    """What training resumes from after a crash. A trial with folds has a bank of its complete folds here."""
    pictures_owed = Place("pictures.owed")
    """The marker that the trial's pictures are still to be drawn."""

    def fold(self, fold: int) -> TrialFolder:
        return TrialFolder(self.path / fold_name(fold))

    @property
    def folds(self) -> list[TrialFolder]:
        """The folders of the folds that have begun; empty for a trial without folds."""
        return [TrialFolder(path) for path in sorted(self.path.glob("fold-*"))]

    @property
    def parts(self) -> list[TrialFolder]:
        """This folder and those of its folds. No links: their targets may belong to something else."""
        if self.path.is_symlink():
            return []
        return [self, *(fold for fold in self.folds if not fold.path.is_symlink())]


@dataclass(frozen=True)
class StudyFolder:
    """The folder of one study. Creating this object creates no files."""

    path: Path

    study_file = Place("study.json")
    """The validated study as JSON, every path absolute."""
    data = Place("data")
    """Cleaned rows, the split and the tasks, as prepared by ``tutti.data``."""
    backbone_file = Place("data/backbone.json")
    """The hashes of the backbone's files, as JSON."""
    shipped = Place("shipped")
    """The files that travelled with jobs of ``tutti submit``, in a folder for each content."""
    backbones = Place("backbones")
    """Copies of the backbones that are folders, of a study on object storage, by their content."""
    optuna_file = Place("optuna.db")
    """Optuna's database, if the study file names none."""
    database_file = Place("database.json")
    """The marker that the study has started in a server's database; JSON with its ``owner``, as ``study``."""
    owner_file = Place("owner")
    """The file with ``owner``."""
    mlflow_file = Place("mlflow.db")
    """MLflow's database, if the study file names no tracking store."""
    spool = Place("tracking.jsonl")
    """The queue of events for the tracker."""
    mlflow_artifacts = Place("mlflow-artifacts")
    bank = Place("bank")
    ray = Place("ray")
    """Ray's own records of the Tune and Train runs; nothing is read back from them."""
    ensembles = Place("ensembles")
    estimates = Place("estimates")
    """Nested estimates that need not be computed again; it may be removed."""
    pseudo_labels = Place("pseudo-labels")
    rounds = Place("rounds")
    refits = Place("refits")
    soups = Place("soups")
    report = Place("report")
    leaderboard = Place("leaderboard.json")
    trials = Place("trials")

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def begun(self) -> bool:
        """Whether the study's database has been made. Until then its definition may still change."""
        return self.study_file.is_file() and (self.optuna_file.is_file() or self.database_file.is_file())

    @property
    def has_trials(self) -> bool:
        """Whether trials have left files, even where the database that knows them is lost."""
        return any(self.trials.glob("*")) or any(self.bank.glob("*"))

    @property
    def encoded(self) -> Path:
        """The cache of encoded texts, shared by all studies in the same parent folder."""
        return self.path.parent / ".encoded"

    @property
    def optuna_url(self) -> str:
        return sqlite_url(self.optuna_file)

    @property
    def owner(self) -> str | None:
        """An id that distinguishes this study from others of its name on a shared server; None if it has no id.

        Raises:
            StorageError: if the file system refuses to read it.
        """
        with storage_faults(self.owner_file), suppress(FileNotFoundError):
            return self.owner_file.read_text(encoding="utf-8").strip() or None
        return None

    @property
    def mlflow_uri(self) -> str:
        return sqlite_url(self.mlflow_file)

    def trial(self, key: str) -> TrialFolder:
        """A trial's folder.

        Raises:
            StudyError: where ``key`` would lead out of the folder of trials.
        """
        if not is_plain(key):
            remedy = "use the key that the study gave"
            raise StudyError(Fault(f"the trial {key!r}", "be a plain name", "a path", remedy))
        return TrialFolder(self.trials / key)


def find_study(study: str, *, beside: Path | None = None) -> StudyFolder:
    """The folder of a study, which is given by path, by name, or by its address on object storage.

    Of one on object storage it is the working copy, into which all but its weights is brought.

    Args:
        beside: the folder in which to look up names; by default ``studies_folder()``.

    Raises:
        StudyError: where there is no such study, or the name is a link out of the folder of studies.
        StorageError: if the object storage cannot be reached.
    """
    given = name = study
    if is_address(study):
        address, _, name = study.rstrip("/").rpartition("/")
        if not is_address(address):
            remedy = "write it like s3://bucket/studies/NAME"
            raise StudyError(Fault("the study", "be named below a bucket", study, remedy))
        beside = working_copies(address)
        study = str(beside / name)
    if fault := address_fault(study, what="the study"):
        raise StudyError(fault)
    parent = beside or studies_folder()
    path = Path(study).absolute()
    pull(path)
    if _is_study(path):
        return StudyFolder(path)
    if is_plain(study):
        pull(parent / study)
    if is_plain(study) and _is_study(parent / study):
        check_inside(StudyFolder(parent / study))
        return StudyFolder(parent / study)
    known = study_names(parent) or sorted(folder.parent.name for folder in parent.glob("*/study.json"))
    listed = ", ".join(known) if known else "none"
    rule = f"be the folder of a study, or the name of one in {address_of(parent) or parent}"
    got = f"an unknown name (studies there: {listed})"
    remedy = nearest(name, known, otherwise="run `tutti tune STUDY.yaml` first, or name the study's folder")
    raise StudyError(Fault(f"the study {given!r}", rule, got, remedy))


def check_inside(folder: StudyFolder) -> None:
    """Refuses a study folder that is a link out of its parent folder.

    Raises:
        StudyError: where it is one.
    """
    if not is_inside(folder.path, folder.path.parent):
        rule, got = f"lie in {folder.path.parent}", f"a link to {folder.path.resolve()}"
        remedy = "name that folder itself, or set `storage.path` to the folder that contains it"
        raise StudyError(Fault(f"the study {folder.name!r}", rule, got, remedy))


def _is_study(folder: Path) -> bool:
    try:
        return (folder / "study.json").is_file()
    except (OSError, ValueError):  # a name too long, a null byte, no permission to look
        return False
