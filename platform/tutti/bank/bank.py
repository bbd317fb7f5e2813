"""The prediction bank: the predictions of each trial's best checkpoint for every row, in a folder or object store."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from tutti.bank.tables import from_parquet, to_parquet
from tutti.errors import Fault, StorageError, misfit, nearest
from tutti.files import check_no_link, is_plain, write_whole
from tutti.records import CheckpointRecord
from tutti.tasks.predictions import Predictions

_METADATA = "record.json"
_ATTEMPTS = 10  # an entry may be replaced while it is read; it is then looked up again


@dataclass(frozen=True)
class _Entry:
    """One complete version of a checkpoint's entry: its folder, its metadata, and the record in them."""

    folder: str
    metadata: Mapping[str, Any]
    record: CheckpointRecord


class Bank:
    """A prediction bank in a folder or an object store.

    A checkpoint's entry is ``ROOT/KEY/VERSION/``. It has one Parquet file per task and part in ``predictions/TASK/``
    and ``record.json``, written last, with the checkpoint's record and the SHA-256 of each file. An entry without a
    readable ``record.json`` is incomplete and ignored; a ``record.json`` with the wrong fields is an error in every
    method that reads it. Predictions are never overwritten: putting a key again makes a new version, and earlier ones
    are deleted once it is complete.

    Args:
        root: a folder, or a URI that pyarrow opens (``s3://bucket/folder``). The constructor creates nothing.
        filesystem: the file system of ``root``, if no URI describes it.

    Raises:
        StorageError: if the URI cannot be opened.
    """

    def __init__(self, root: str | Path, *, filesystem: fs.FileSystem | None = None) -> None:
        self._name = str(root)
        if filesystem is not None:
            self._fs, base = filesystem, str(root)
        elif "://" in str(root):
            with self._storage_errors("be the URI of a folder that can be opened"):
                self._fs, base = fs.FileSystem.from_uri(str(root))
        else:
            self._fs, base = fs.LocalFileSystem(), str(Path(root).absolute())
        self._base = base.rstrip("/")

    def put(self, record: CheckpointRecord, predictions: Mapping[str, Mapping[str, Predictions]]) -> None:
        """Stores a checkpoint's predictions (task to part to predictions) and replaces any earlier entry of its key.

        Raises:
            StorageError: if a write fails, for example for lack of space, or a name is not a plain name. The bank is
                then unchanged.
        """
        for name in (record.key, *predictions, *(part for parts in predictions.values() for part in parts)):
            if not is_plain(name):
                raise StorageError(
                    Fault(self._shown(name), "be a plain name in the bank", "a path", "name it otherwise")
                )
        if isinstance(self._fs, fs.LocalFileSystem):
            check_no_link(Path(self._path(record.key)))
        version = 1 + max((_version(path) for path in self._paths(record.key)), default=0)
        folder = f"{record.key}/{version:04d}-{uuid.uuid4().hex[:8]}"
        files: dict[str, dict[str, dict[str, str]]] = {}
        try:
            for task, parts in predictions.items():
                files[task] = {}
                for part, part_predictions in parts.items():
                    name, content = f"predictions/{task}/{part}.parquet", to_parquet(part_predictions)
                    self._write(f"{folder}/{name}", content)
                    files[task][part] = {"file": name, "sha256": hashlib.sha256(content).hexdigest()}
            fields = {**asdict(record), "task_scores": dict(record.task_scores)}
            self._write_metadata(folder, {"checkpoint": fields, "predictions": files})
        except BaseException:
            self._delete(folder)
            raise
        for complete in {path.rsplit("/", 1)[0] for path in _metadata_of(self._paths(record.key))}:
            if _version(f"{complete}/") < version:
                self._delete(complete)

    def add(self, key: str, predictions: Mapping[str, Mapping[str, Predictions]]) -> None:
        """Adds parts to a checkpoint's entry, such as those of a later test set; raises StorageError as ``put`` does.

        Raises:
            StorageError: if the bank has no complete entry ``key``.
        """
        parts = self.parts(key)
        known = {task: {part: self.predictions(key, task, part) for part in parts[task]} for task in parts}
        merged = {task: {**known.get(task, {}), **predictions.get(task, {})} for task in {**known, **predictions}}
        self.put(self._entry(key).record, merged)

    def records(self, keys: Iterable[str] = ("",)) -> list[CheckpointRecord]:
        """The records of complete entries, of all or of those with these keys, sorted by trial number.

        Raises:
            StorageError: if the store cannot be read, or an entry's metadata are damaged.
        """
        entries = [entry for key in keys for entry in self._entries(key).values()]
        return sorted((entry.record for entry in entries), key=lambda record: record.number)

    def parts(self, key: str) -> dict[str, list[str]]:
        """The parts for which a checkpoint has predictions, by task.

        Raises:
            StorageError: if the bank has no complete entry ``key``.
        """
        return {task: list(parts) for task, parts in self._entry(key).metadata["predictions"].items()}

    def predictions(self, key: str, task: str, part: str) -> Predictions:
        """The predictions of checkpoint ``key`` for one part of one task.

        Raises:
            StorageError: if the bank has no such predictions, or their file is damaged.
        """
        for _ in range(_ATTEMPTS):
            path, sha256 = self._file(key, task, part)
            with suppress(FileNotFoundError):  # replaced since the lookup: retry
                return self._decode(path, self._read(path), sha256)
        raise self._damaged(path, "no file")

    def check(self, key: str) -> None:
        """Reads and verifies all files of a checkpoint's entry.

        Raises:
            StorageError: if the bank has no complete entry ``key``, or one of its files is damaged.
        """
        for task, parts in self.parts(key).items():
            for part in parts:
                self.predictions(key, task, part)

    def forget_weights(self, key: str) -> None:
        """Records that a checkpoint's weights were removed; its predictions stay.

        Raises:
            StorageError: if the bank has no complete entry ``key``, or a write fails.
        """
        entry = self._entry(key)
        fields = {**entry.metadata["checkpoint"], "path": None}
        self._write_metadata(entry.folder, {**entry.metadata, "checkpoint": fields})

    def remove(self, key: str) -> None:
        """Removes all versions of a checkpoint's entry, if there are any.

        Raises:
            StorageError: if they cannot be removed.
        """
        if self._paths(key):
            self.discard(key)

    def leftovers(self) -> list[str]:
        """Folders ``KEY/VERSION`` that nothing reads: incomplete ones, and those with a newer complete version.

        Raises:
            StorageError: if the store cannot be read.
        """
        newest = {key: _version(entry.folder) for key, entry in self._entries("").items()}
        paths = self._paths("")
        complete = {path.rsplit("/", 1)[0] for path in _metadata_of(paths)}
        folders = [path for path in paths if path.count("/") == 1 and _version(path)]
        return sorted(
            folder
            for folder in folders
            if folder not in complete or _version(folder) < newest.get(folder.split("/")[0], 0)
        )

    def discard(self, name: str) -> None:
        """Removes the folder of a trial, or one of the ``leftovers``.

        Raises:
            StorageError: if it cannot be removed.
        """
        with self._storage_errors("be removed", name):
            self._fs.delete_dir(self._path(name))

    def _file(self, key: str, task: str, part: str) -> tuple[str, str]:
        """Path and SHA-256 of one part's file."""
        entry = self._entry(key)
        files: Mapping[str, Mapping[str, Mapping[str, str]]] = entry.metadata["predictions"]
        if part not in files.get(task, {}):
            got = "only " + (
                ", ".join(f"{name}/{each}" for name, parts in files.items() for each in parts) or "nothing"
            )
            remedy = "name a part it holds, or start a new study"
            raise StorageError(Fault(self._shown(key), f"hold {task}/{part}", got, remedy))
        file = files[task][part]
        return f"{entry.folder}/{file['file']}", file["sha256"]

    def _decode(self, path: str, content: bytes, sha256: str) -> Predictions:
        """The predictions in a file's content, which must have this SHA-256."""
        if hashlib.sha256(content).hexdigest() != sha256:
            raise self._damaged(path, "a file that was cut short or changed since")
        try:
            return from_parquet(content)
        except (pa.ArrowException, KeyError, ValueError, TypeError, OSError) as error:
            raise self._damaged(path, f"a file that cannot be read ({error})") from error
        except StorageError as error:  # intact, but not valid predictions: name the file
            raise StorageError(*(replace(fault, what=self._shown(path)) for fault in error.faults)) from error

    def _damaged(self, path: str, got: str, *, kind: str = "Parquet file") -> StorageError:
        remedy = "restore the file from a copy, or move the trial's folder out of the bank: it has no vote then"
        return StorageError(Fault(self._shown(path), f"be the {kind} that the trial wrote", got, remedy))

    def _entry(self, key: str) -> _Entry:
        entries = self._entries(key)
        if key not in entries:
            known = [record.key for record in self.records()]
            remedy = nearest(key, known, otherwise="name one of them, or wait until its trial has finished")
            got = f"only {', '.join(known)}" if known else "an empty bank"
            raise StorageError(Fault(f"the bank {self._name}", f"hold checkpoint {key}", got, remedy))
        return entries[key]

    def _entries(self, under: str) -> dict[str, _Entry]:
        """The newest complete entry of every key below ``under`` (a key, or ``""`` for all)."""
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):  # replaced between listing and reading: retry
                return {entry.record.key: entry for entry in self._complete_entries(self._paths(under))}
        got, remedy = "entries that come and go", "try again"
        raise StorageError(Fault(self._shown(under), "hold still while it is read", got, remedy))

    def _complete_entries(self, paths: Iterable[str]) -> Iterator[_Entry]:
        """All complete versions in a listing, the newest of each key last."""
        for path in sorted(_metadata_of(paths), key=lambda path: (_version(path), path)):
            try:
                metadata = json.loads(self._read(path))
            except ValueError:
                continue
            try:
                yield _Entry(path.rsplit("/", 1)[0], metadata, record_of(metadata))
            except ValueError as error:
                raise self._damaged(path, str(error), kind="record") from error

    def _paths(self, under: str) -> list[str]:
        """All paths below ``under``, relative to the root."""
        selector = fs.FileSelector(self._path(under), recursive=True, allow_not_found=True)
        with self._storage_errors("be readable"):
            paths = [info.path for info in self._fs.get_file_info(selector)]
        prefix = len(self._base) + 1 if self._base else 0
        return [path[prefix:] for path in paths]

    def _read(self, path: str) -> bytes:
        with (
            self._storage_errors("be readable", path, passing=FileNotFoundError),
            self._fs.open_input_stream(self._path(path)) as stream,
        ):
            return stream.read()

    def _write_metadata(self, folder: str, metadata: Mapping[str, Any]) -> None:
        self._write(f"{folder}/{_METADATA}", json.dumps(metadata, ensure_ascii=False, indent=1).encode())

    def _write(self, path: str, content: bytes) -> None:
        if isinstance(self._fs, fs.LocalFileSystem):
            write_whole(Path(self._path(path)), content)
            return
        with self._storage_errors("be written whole", path):
            self._fs.create_dir(self._path(path).rsplit("/", 1)[0], recursive=True)
            with self._fs.open_output_stream(self._path(path)) as stream:
                stream.write(content)

    def _delete(self, folder: str) -> None:
        with suppress(OSError):  # leftovers are never read: they are incomplete or earlier versions
            self._fs.delete_dir(self._path(folder))

    def _path(self, path: str) -> str:
        """The path in the file system."""
        return "/".join(piece for piece in (self._base, path) if piece)

    def _shown(self, path: str) -> str:
        """The path as messages show it, below the root as it was given."""
        return f"{self._name.rstrip('/')}/{path}"

    @contextmanager
    def _storage_errors(self, rule: str, path: str = "", *, passing: type[OSError] | tuple[()] = ()) -> Iterator[None]:
        """Turns errors of the file system into StorageErrors, except those in ``passing``."""
        try:
            yield
        except passing:
            raise
        except (OSError, pa.ArrowException) as error:
            remedy = "check whether the store exists, can be reached, and has space and permission for it"
            raise StorageError(Fault(self._shown(path), rule, str(error), remedy)) from error


def _metadata_of(paths: Iterable[str]) -> list[str]:
    """The paths ``KEY/VERSION/record.json`` of a listing."""
    return [path for path in paths if path.count("/") == 2 and path.endswith(f"/{_METADATA}")]


def _version(path: str) -> int:
    """The number in ``KEY/NUMBER-XXXXXXXX[/...]``, or 0 for any other path."""
    digits = path.split("/")[1].split("-")[0]
    return int(digits) if digits.isdigit() else 0


@dataclass(frozen=True)
class _Checkpoint(CheckpointRecord):
    __pydantic_config__ = ConfigDict(extra="forbid")


class _File(BaseModel):
    file: str
    sha256: str

    @field_validator("file")
    @classmethod
    def _stays_inside(cls, file: str) -> str:
        if not all(map(is_plain, file.split("/"))):
            raise ValueError("a path that leads out of the bank")
        return file


class _Metadata(BaseModel):
    checkpoint: _Checkpoint
    predictions: dict[str, dict[str, _File]]


def record_of(metadata: object) -> CheckpointRecord:
    """The checkpoint record in an entry's metadata.

    Args:
        metadata: ``{"checkpoint": fields of the record, "predictions": {TASK: {PART: {"file": ..., "sha256": ...}}}}``.

    Raises:
        ValueError: if the metadata have another form; the message completes "got ...".
    """
    try:
        checkpoint = _Metadata.model_validate(metadata).checkpoint
    except ValidationError as error:
        raise ValueError(misfit(error)) from error
    return CheckpointRecord(**vars(checkpoint))
