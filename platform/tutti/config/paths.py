"""Makes the paths of a study file absolute, and checks that the files exist before anything starts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tutti.config.address import address_fault, has_place, with_variables
from tutti.config.backbones import map_backbones
from tutti.config.folder import StudyFolder, find_study, studies_folder
from tutti.config.raw import section
from tutti.copies import address_of, working_copies
from tutti.errors import Fault, StudyError, nearest
from tutti.files import is_plain, nearest_file
from tutti.mirror import pull
from tutti.objects import is_address

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""Schemes of addresses that MLflow opens as a database; each also with a driver: mysql+pymysql."""

_SERVERS = ("postgresql", "postgresql+psycopg", "postgresql+psycopg2")
_STORES = (*DATABASES, "http", "https", "file", "databricks")
_SCHEME = re.compile(r"^([A-Za-z][\w.-]*)(\+\w+)?(?=:|$)")
_LOCAL_STORE = re.compile(r"^((?:sqlite(?:\+\w+)?:///)|file:)(?!/|:memory:)([^?]+)(.*)$")
_PLACE = "name a host, and a port in digits where it names one"
_FILES = ("train", "validation", "test", "unlabeled", "test.*", "validation.*")  # parts, and sets of them
_PATHS = ("cleaning.emoji", "dataset", "report_sets.*.file", "metric.file", "submission.like", "extra_train.*.path")
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")


def absolute(path: str, folder: Path) -> Path:
    """``path`` with ``~`` and environment variables expanded, relative to ``folder``. Links are not resolved."""
    expanded = Path(with_variables(path))
    with suppress(RuntimeError):  # ~name where no user has that name: it may be the name of a file
        expanded = expanded.expanduser()
    return Path(os.path.normpath(folder.absolute() / expanded))


def map_task_paths(task: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """A copy of a raw task in which each path is replaced by ``change(key, path)``.

    Keys are relative to the task: ``train``, ``test.round1``, ``dataset``, ``metric.file``, ``submission.like``,
    ``extra_train.0.path``. For the layout ``hub`` the parts are names of splits, not paths. Values of a wrong type are
    left for the validation of types.
    """

    from_files = task.get("layout") != "hub" and not (task.get("layout") == "instructions" and task.get("dataset"))
    mapped = dict(task)
    for place in (*(_FILES if from_files else ()), *_PATHS):
        mapped = _with_paths(mapped, place.split("."), "", change)
    return mapped


def _with_paths(value: Any, place: Sequence[str], key: str, change: Callable[[str, str], str]) -> Any:
    """A copy of a value of a task with the paths changed that are at a place; others are left."""
    if not place:
        if isinstance(value, list):  # of files; a model's dump has tuples
            return [_with_paths(each, (), f"{key}.{index}", change) for index, each in enumerate(value)]
        is_path = isinstance(value, str) and (key != "cleaning.emoji" or value.endswith(".json"))
        return change(key, value) if is_path else value
    name, *rest = place
    if isinstance(value, list) and name == "*" and rest:
        return [_with_paths(each, rest, f"{key}.{index}", change) for index, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    names = [*value] if name == "*" else [name] if name in value else []
    return value | {each: _with_paths(value[each], rest, f"{key}.{each}" if key else each, change) for each in names}


def resolve_paths(
    raw: dict[str, Any], *, folder: Path, what: Callable[[str], str], shared: bool
) -> tuple[dict[str, Any], list[Fault]]:
    """A copy of a raw study with every path absolute, and a fault for each path to nothing.

    Values of a wrong type are left for the validation of types.

    Args:
        shared: whether ``storage.path`` is on storage that this machine may not have mounted. Paths below it are then
            left for the cluster to check.
    """
    resolved = dict(raw)
    storage, search, tracking = (section(raw, key) for key in ("storage", "search", "tracking"))
    address = None
    path = storage.get("address") or storage.get("path")
    if isinstance(path, str) and is_address(path):
        copies = working_copies(path)
        resolved["storage"] = {**storage, "path": str(copies), "address": path.rstrip("/")}
        if isinstance(study := raw.get("study"), str) and is_plain(study) and not shared:
            pull(StudyFolder(copies / study).study_file)  # whether it has begun
    elif isinstance(path, str):
        address = address_fault(path, what=what("storage.path"))
        resolved["storage"] = {**storage, "path": str(absolute(path, folder))}
    studies = _studies_of(resolved)
    paths = _Paths(folder, what, unmounted=studies if shared and not studies.exists() else None)
    paths.faults += [address] if address else []
    if isinstance(raw.get("tasks"), dict):
        resolved["tasks"] = {name: paths.task(name, task) for name, task in raw["tasks"].items()}
    resolved = map_backbones(resolved, paths.folder_or_hub_id)
    search = section(resolved, "search")
    if isinstance(database := storage.get("database"), str):
        paths.database("storage.database", database)
    if isinstance(older := search.get("warm_start"), list):
        needed = not has_begun(resolved)  # a study that has begun has copies of their trials
        places = [paths.study(index, value, beside=studies, needed=needed) for index, value in enumerate(older)]
        resolved["search"] = {**search, "warm_start": places}
    if isinstance(uri := tracking.get("uri"), str):
        resolved["tracking"] = {**tracking, "uri": paths.store("tracking.uri", uri)}
    return resolved, paths.faults


def resolve_pretraining(
    raw: Mapping[str, Any], *, folder: Path, what: Callable[[str], str], shared: bool = False
) -> tuple[dict[str, Any], list[Fault]]:
    """As ``resolve_paths``, of the options of pretraining; what is ``shared`` is the folder that ``out`` is in."""
    resolved, paths = {key: _plain(value) for key, value in raw.items()}, _Paths(folder, what, unmounted=None)
    for key in ("out", "cache"):
        if isinstance(value := resolved.get(key), str):
            address = address_fault(value, what=what(key))
            paths.faults += [address] if address else []
            resolved[key] = str(absolute(value, folder))
    if shared and isinstance(out := resolved.get("out"), str) and not (place := Path(out).parent).exists():
        paths.unmounted = place
    texts = resolved.get("texts")
    if isinstance(texts := [texts] if isinstance(texts, str) else texts, list):
        resolved["texts"] = [
            paths.file(f"texts.{index}", each) if isinstance(each, str) else each for index, each in enumerate(texts)
        ]
    if isinstance(study := section(resolved, "search").get("study"), str):
        resolved["search"] = {**section(resolved, "search"), "study": paths.file("search.study", study)}
    resolved = map_backbones(resolved, paths.folder_or_hub_id)
    if isinstance(uri := resolved.get("tracking"), str):
        resolved["tracking"] = paths.store("tracking", uri)
    return resolved, paths.faults


def _plain(value: Any) -> Any:
    """What a YAML file can hold: texts in place of paths, lists of tuples."""
    return (
        [*map(_plain, value)] if isinstance(value, list | tuple) else str(value) if isinstance(value, Path) else value
    )


def has_begun(raw: Mapping[str, Any], *, trials: bool = False) -> bool:
    """Whether the folder of a raw study, whose paths are absolute, holds one that has begun, or even has trials."""
    study = raw.get("study")
    folder = StudyFolder(_studies_of(raw) / study) if isinstance(study, str) and is_plain(study) else None
    return folder is not None and folder.begun and (folder.has_trials or not trials)


def _studies_of(raw: Mapping[str, Any]) -> Path:
    path = section(raw, "storage").get("path")
    return Path(path) if isinstance(path, str) else studies_folder()


def older_folders(raw: Mapping[str, Any]) -> dict[int, Path]:
    """The existing folders among the resolved paths under ``search.warm_start``, by index; none unless it is a list."""
    entries = section(raw, "search").get("warm_start")
    entries = entries if isinstance(entries, list) else []
    paths = {index: Path(value) for index, value in enumerate(entries) if isinstance(value, str)}
    return {index: path for index, path in paths.items() if StudyFolder(path).study_file.is_file()}


def missing_file(path: Path, *, what: str) -> Fault | None:
    """The fault of a file that does not exist, with the nearest name in its folder; None where it exists."""
    try:
        return None if path.is_file() else _missing_file_fault(path, what=what)
    except (OSError, ValueError) as error:  # no permission to look, a name too long, a null byte
        got = f"{str(path)!r} ({getattr(error, 'strerror', None) or error})"
        return Fault(what, "be a readable file", got, "correct the path, or check its permissions")


def _missing_file_fault(path: Path, *, what: str) -> Fault:
    if path.is_dir():
        return Fault(what, "be a file", f"the folder {str(path)!r}", "name a file in it")
    existing = path.parent
    while not existing.is_dir():
        existing = existing.parent
    if existing != path.parent:
        got = f"{str(path)!r}, of which only the folder {str(existing)!r} exists"
        return Fault(what, "be an existing file", got, "correct the path, or put the file there")
    remedy = nearest_file(path, otherwise="correct the path, or put the file there")
    return Fault(what, "be an existing file", f"{str(path)!r}, which does not exist", remedy)


def _folders_in(path: Path) -> list[str] | None:
    """Names of the subfolders of a folder; None where it does not exist or cannot be read."""
    try:
        return [inner.name for inner in path.iterdir() if inner.is_dir()]
    except (OSError, ValueError):
        return None


class _Paths:
    """Resolves the paths of one study file and collects their faults."""

    def __init__(self, folder: Path, what: Callable[[str], str], *, unmounted: Path | None) -> None:
        self.folder = folder
        self.what = what
        self.unmounted = unmounted
        self.faults: list[Fault] = []

    def _is_unmounted(self, path: Path) -> bool:
        return self.unmounted is not None and path.is_relative_to(self.unmounted)

    def task(self, name: str, task: Any) -> Any:
        if not isinstance(task, dict):
            return task

        def resolve(key: str, path: str) -> str:
            place = f"tasks.{name}.{key}"
            return self.folder_or_hub_id(place, path) if key == "dataset" else self.file(place, path)

        return map_task_paths(task, resolve)

    def file(self, key: str, value: str) -> str:
        path = absolute(value, self.folder)
        fault = address_fault(value, what=self.what(key))
        if not fault and not self._is_unmounted(path):
            fault = missing_file(path, what=self.what(key))
        self.faults += [fault] if fault else []
        return str(path)

    def study(self, index: int, value: Any, *, beside: Path, needed: bool) -> Any:
        """The folder of another study, given by path or name; the value itself where there is none (any more).

        That is a fault where the study is ``needed``.
        """
        if not isinstance(value, str):
            return value
        own = StudyFolder(absolute(value, self.folder))
        try:
            return str((own if own.study_file.is_file() else find_study(value, beside=beside)).path)
        except StudyError as error:
            there = self.unmounted / value if self.unmounted and is_plain(value) else own.path
            if self._is_unmounted(there):
                return str(there)
            what = self.what(f"search.warm_start.{index}")
            self.faults += [replace(fault, what=what) for fault in error.faults] if needed else []
            return value

    def store(self, key: str, uri: str) -> str:
        """The address of an MLflow store; the path of a local one is made absolute."""
        scheme = _SCHEME.match(uri) if ":" in uri or uri == "databricks" else None
        name, driver = (scheme[1], scheme[2]) if scheme else ("", None)
        if name not in _STORES or (driver and name not in DATABASES):
            got = f"the scheme {name + (driver or '')!r}" if scheme else "no scheme"  # the rest may contain a password
            remedy = nearest(name, _STORES, otherwise="write it like http://HOST:5000 or sqlite:///mlflow.db")
            rule = f"be the address of an MLflow store, with one of the schemes {', '.join(_STORES)}"
            self.faults.append(Fault(self.what(key), rule, got, remedy))
        elif not has_place(uri):
            self.faults.append(
                Fault(self.what(key), _PLACE, "an address that cannot be read", "write it like http://HOST:5000")
            )
        elif local := _LOCAL_STORE.match(uri):
            if fault := address_fault(local[2], what=self.what(key)):
                self.faults.append(fault)
            return f"{local[1]}{absolute(local[2], self.folder)}{local[3]}"
        return uri

    def database(self, key: str, url: str) -> None:
        """Checks the address of Optuna's database, which has to be on a server, so that any machine may read it."""
        scheme, separator, _ = url.partition("://")
        if scheme not in _SERVERS or not separator:
            got = f"the scheme {scheme!r}" if separator else "no scheme"  # the rest may contain a password
            rule = "be the address of a PostgreSQL server's database"
            remedy = "write it like postgresql://USER@HOST/DATABASE, or leave it out to keep SQLite"
            self.faults.append(Fault(self.what(key), rule, got, remedy))
        elif not has_place(url):
            remedy = "write it like postgresql://USER@HOST:5432/DATABASE"
            self.faults.append(Fault(self.what(key), _PLACE, "an address that cannot be read", remedy))

    def folder_or_hub_id(self, key: str, value: str) -> str:
        if fault := address_fault(value, what=self.what(key)):
            self.faults.append(fault)
            return value
        path = absolute(value, self.folder)
        if value and (self._is_unmounted(path) or _folders_in(path) is not None):
            return str(path)
        if not _HUB_ID.match(value):
            otherwise = "correct the path, or name a model or data set of the hub"
            remedy = nearest(path.name, _folders_in(path.parent) or (), otherwise=otherwise)
            rule = "be an existing folder, or an id of the Hugging Face hub"
            self.faults.append(Fault(self.what(key), rule, repr(value), remedy))
        return value


def as_stored(file: Path) -> str:
    """The text of a stored study; the paths of one on object storage are those of the working copy that it is in."""
    text, studies = file.read_text(encoding="utf-8"), str(file.parents[1])
    if address_of(file) and (stored := section(json.loads(text), "storage").get("path")):
        text = text.replace(f"{json.dumps(stored)[:-1]}/", f"{json.dumps(studies)[:-1]}/")
    return text
