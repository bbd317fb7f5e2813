"""Paths of a study file: relative to it in the file, absolute from here on, and there before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tutti.config.address import has_place
from tutti.config.folder import StudyFolder, find_study, studies_folder
from tutti.errors import Fault, StudyError, nearest
from tutti.files import is_plain, nearest_file

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # each also with a driver: mysql+pymysql
_SERVERS = ("postgresql", "postgresql+psycopg", "postgresql+psycopg2")
_STORES = (*_DATABASES, "http", "https", "file", "databricks")
_SCHEME = re.compile(r"^([A-Za-z][\w.-]*)(\+\w+)?(?=:|$)")
_IN_A_FILE = re.compile(r"^((?:sqlite(?:\+\w+)?:///)|file:)(?!/|:memory:)([^?]+)(.*)$")
_PLACE = "name a host, and a port in digits where it names one"
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")


def absolute(path: str, folder: Path) -> Path:
    """``path`` with ``~`` expanded, taken from ``folder`` where it is relative; links in it stay as they are."""
    given = Path(path)
    with suppress(RuntimeError):  # ~name of no user of this machine: a file may be called so
        given = given.expanduser()
    return Path(os.path.normpath(folder.absolute() / given))


def resolve_paths(
    raw: dict[str, Any], *, folder: Path, what: Callable[[str], str]
) -> tuple[dict[str, Any], list[Fault]]:
    """A copy of a study's raw mapping with every path absolute, and a fault for each that names nothing.

    Values of a wrong type are left for the validation of types.
    """
    paths = _Paths(folder, what)
    found = dict(raw)
    if isinstance(raw.get("tasks"), dict):
        found["tasks"] = {name: paths.task(name, task) for name, task in raw["tasks"].items()}
    if isinstance(raw.get("backbone"), str):
        found["backbone"] = paths.folder_or_hub_id("backbone", raw["backbone"])
    storage = raw.get("storage")
    if isinstance(storage, dict) and isinstance(storage.get("path"), str):
        found["storage"] = storage | {"path": str(absolute(storage["path"], folder))}
    if isinstance(storage, dict) and isinstance(storage.get("database"), str):
        paths.database("storage.database", storage["database"])
    search = raw.get("search")
    if isinstance(search, dict) and isinstance(search.get("warm_start"), list):
        place = found["storage"].get("path") if isinstance(storage, dict) else None
        beside = Path(place) if isinstance(place, str) else None
        begun = _has_begun(raw.get("study"), beside or studies_folder())  # it has their trials by then
        given = enumerate(search["warm_start"])
        older = [paths.study(index, value, beside=beside, needed=not begun) for index, value in given]
        found["search"] = search | {"warm_start": older}
    tracking = raw.get("tracking")
    if isinstance(tracking, dict) and isinstance(tracking.get("uri"), str):
        found["tracking"] = tracking | {"uri": paths.store("tracking.uri", tracking["uri"])}
    return found, paths.faults


def _has_begun(study: Any, studies: Path) -> bool:
    return isinstance(study, str) and is_plain(study) and StudyFolder(studies / study).begun


def older_folders(raw: Mapping[str, Any]) -> dict[int, Path]:
    """Of resolved paths, the folders of the studies under ``search.warm_start`` that are there, by their index."""
    search = raw.get("search")
    given = search.get("warm_start") if isinstance(search, dict) else None
    paths = {index: Path(value) for index, value in enumerate(given or ()) if isinstance(value, str)}
    return {index: path for index, path in paths.items() if StudyFolder(path).study_file.is_file()}


def missing_file(path: Path, *, what: str) -> Fault | None:
    """The fault of a file that is not there, with the nearest name in its folder; none where it is."""
    try:
        return None if path.is_file() else _missing(path, what=what)
    except (OSError, ValueError) as error:  # no permission to look, a name too long, a null byte
        got = f"{str(path)!r} ({getattr(error, 'strerror', None) or error})"
        return Fault(what, "be a file that can be read", got, "correct the path, or see to its permissions")


def _missing(path: Path, *, what: str) -> Fault:
    if path.is_dir():
        return Fault(what, "be a file", f"the folder {str(path)!r}", "name a file in it")
    existing = path.parent
    while not existing.is_dir():
        existing = existing.parent
    if existing != path.parent:
        got = f"{str(path)!r}, of which only the folder {str(existing)!r} is there"
        return Fault(what, "be a file that is there", got, "correct the path, or put the file there")
    remedy = nearest_file(path, otherwise="correct the path, or put the file there")
    return Fault(what, "be a file that is there", f"{str(path)!r}, which is not", remedy)


def _folders_in(path: Path) -> list[str] | None:
    """Names of the folders in a folder; none where it is not there or may not be looked into."""
    try:
        return [inner.name for inner in path.iterdir() if inner.is_dir()]
    except (OSError, ValueError):
        return None


class _Paths:
    def __init__(self, folder: Path, what: Callable[[str], str]) -> None:
        self.folder = folder
        self.what = what
        self.faults: list[Fault] = []

    def task(self, name: str, task: Any) -> Any:
        if not isinstance(task, dict):
            return task
        found = dict(task)
        key = f"tasks.{name}"
        if task.get("layout") != "hub":
            for part in ("train", "validation", "test", "unlabeled"):
                found |= {part: self.file(f"{key}.{part}", task[part])} if part in task else {}
            if isinstance(task.get("test"), dict):
                found["test"] = {name: self.file(f"{key}.test.{name}", file) for name, file in task["test"].items()}
        if isinstance(task.get("dataset"), str):
            found["dataset"] = self.folder_or_hub_id(f"{key}.dataset", task["dataset"])
        if isinstance(task.get("extra_train"), list):
            found["extra_train"] = [
                entry | {"path": self.file(f"{key}.extra_train.{index}.path", entry["path"])}
                if isinstance(entry, dict) and "path" in entry
                else entry
                for index, entry in enumerate(task["extra_train"])
            ]
        return found

    def file(self, key: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        path = absolute(value, self.folder)
        if fault := missing_file(path, what=self.what(key)):
            self.faults.append(fault)
        return str(path)

    def study(self, index: int, value: Any, *, beside: Path | None, needed: bool) -> Any:
        """The folder of another study, given by folder or by name; as it stands where it is gone and not needed."""
        if not isinstance(value, str):
            return value
        own = StudyFolder(absolute(value, self.folder))
        try:
            return str((own if own.study_file.is_file() else find_study(value, beside=beside)).path)
        except StudyError as error:
            what = self.what(f"search.warm_start.{index}")
            self.faults += [replace(fault, what=what) for fault in error.faults] if needed else []
            return value

    def store(self, key: str, uri: str) -> str:
        """An MLflow store's address; that of one in a file is made absolute."""
        scheme = _SCHEME.match(uri) if ":" in uri or uri == "databricks" else None
        name, driver = (scheme[1], scheme[2]) if scheme else ("", None)
        if name not in _STORES or (driver and name not in _DATABASES):
            got = f"the scheme {name + (driver or '')!r}" if scheme else "no scheme"  # the rest may hold a password
            remedy = nearest(name, _STORES, otherwise="write it like http://HOST:5000 or sqlite:///mlflow.db")
            rule = f"be the address of an MLflow store, with one of the schemes {', '.join(_STORES)}"
            self.faults.append(Fault(self.what(key), rule, got, remedy))
        elif not has_place(uri):
            self.faults.append(
                Fault(self.what(key), _PLACE, "an address that cannot be read", "write it like http://HOST:5000")
            )
        elif local := _IN_A_FILE.match(uri):
            return f"{local[1]}{absolute(local[2], self.folder)}{local[3]}"
        return uri

    def database(self, key: str, url: str) -> None:
        """The address of Optuna's database, which has to be a server's: any number of machines may then read it."""
        scheme, there, _ = url.partition("://")
        if scheme not in _SERVERS or not there:
            got = f"the scheme {scheme!r}" if there else "no scheme"  # the rest may hold a password
            rule = "be the address of a PostgreSQL server's database"
            remedy = "write it like postgresql://USER@HOST/DATABASE, or leave it out to keep SQLite"
            self.faults.append(Fault(self.what(key), rule, got, remedy))
        elif not has_place(url):
            remedy = "write it like postgresql://USER@HOST:5432/DATABASE"
            self.faults.append(Fault(self.what(key), _PLACE, "an address that cannot be read", remedy))

    def folder_or_hub_id(self, key: str, value: str) -> str:
        path = absolute(value, self.folder)
        if value and _folders_in(path) is not None:
            return str(path)
        beside = _folders_in(path.parent)
        if not _HUB_ID.match(value) or ("/" in value and beside is not None):
            remedy = nearest(
                path.name, beside or (), otherwise="correct the path, or name a model or data set of the hub"
            )
            rule = "be a folder that is there, or an id of the Hugging Face hub"
            self.faults.append(Fault(self.what(key), rule, repr(value), remedy))
        return value
