"""The prediction bank: what each trial's best checkpoint says about every row, in a folder or an object store."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from tutti.bank.metadata import record_of
from tutti.bank.tables import from_parquet, to_parquet
from tutti.errors import Fault, StorageError, nearest
from tutti.files import is_plain, write_whole
from tutti.records import CheckpointRecord, Predictions

logger = logging.getLogger(__name__)

_METADATA = "record.json"
_ATTEMPTS = 3  # an entry that is replaced while it is read is looked up again


@dataclass(frozen=True)
class _Entry:
    """One complete version of one checkpoint's entry, the metadata that makes it complete, and the record in it."""

    folder: str
    metadata: Mapping[str, Any]
    record: CheckpointRecord


class Bank:
    """A prediction bank in a folder or an object store.

    A checkpoint's entry is ``ROOT/KEY/VERSION/``: one Parquet file for each task and part in ``predictions/TASK/``,
    then, written last, ``record.json`` with the checkpoint's record and the SHA-256 of each file. An entry without a
    readable ``record.json`` is not there; one whose ``record.json`` is JSON of another form is an error of every
    method that comes upon it. Predictions are never written over: putting a key again makes a later version, and the
    earlier ones go once it is complete.

    Args:
        root: a folder, or a URI that pyarrow knows (``s3://bucket/folder``). Nothing is made by naming it.
        filesystem: where ``root`` lies, for a file system that no URI describes.

    Raises:
        StorageError: where the URI is not one that can be opened.
    """

    def __init__(self, root: str | Path, *, filesystem: fs.FileSystem | None = None) -> None:
        self._name = str(root)
        if filesystem is not None:
            self._fs, base = filesystem, str(root)
        elif "://" in str(root):
            with self._faults("be the URI of a folder that can be opened"):
                self._fs, base = fs.FileSystem.from_uri(str(root))
        else:
            self._fs, base = fs.LocalFileSystem(), str(Path(root).absolute())
        self._base = base.rstrip("/")

    def put(self, record: CheckpointRecord, predictions: Mapping[str, Mapping[str, Predictions]]) -> None:
        """Adds a checkpoint's predictions (task to part to predictions). What stood under its key is replaced whole.

        Raises:
            StorageError: where the store refuses, for want of space for one, or a name would lead out of the bank. It
                is then as it was before.
        """
        for name in (record.key, *predictions, *(part for parts in predictions.values() for part in parts)):
            if not is_plain(name):
                raise StorageError(
                    Fault(self._place(name), "be a plain name in the bank", "a path", "name it otherwise")
                )
        number = 1 + max((_version(entry) for entry in self._listing(record.key)), default=0)
        folder = f"{record.key}/{number:04d}-{uuid.uuid4().hex[:8]}"
        files: dict[str, dict[str, dict[str, str]]] = {}
        try:
            for task, parts in predictions.items():
                files[task] = {}
                for part, values in parts.items():
                    name, content = f"predictions/{task}/{part}.parquet", to_parquet(values)
                    self._write(f"{folder}/{name}", content)
                    files[task][part] = {"file": name, "sha256": hashlib.sha256(content).hexdigest()}
            fields = {**asdict(record), "task_scores": dict(record.task_scores)}
            self._write_metadata(folder, {"checkpoint": fields, "predictions": files})
        except BaseException:
            self._delete(folder)
            raise
        for earlier in {path.rsplit("/", 1)[0] for path in self._versions(record.key)}:
            if _version(f"{earlier}/") < number:
                self._delete(earlier)

    def records(self) -> list[CheckpointRecord]:
        """The checkpoints with a complete entry, by trial number.

        Raises:
            StorageError: where the store cannot be read, or an entry's metadata are not what a trial wrote.
        """
        return sorted((entry.record for entry in self._entries("").values()), key=lambda record: record.number)

    def parts(self, key: str) -> dict[str, list[str]]:
        """The parts that a checkpoint has predictions for, by task.

        Raises:
            StorageError: where the bank has no complete entry ``key``.
        """
        return {task: list(parts) for task, parts in self._entry(key).metadata["predictions"].items()}

    def predictions(self, key: str, task: str, part: str) -> Predictions:
        """What checkpoint ``key`` says about one part of one task.

        Raises:
            StorageError: where the bank holds no such predictions, or their file is damaged.
        """
        for _ in range(_ATTEMPTS):
            path, sha256 = self._file(key, task, part)
            with suppress(FileNotFoundError):  # replaced since it was looked up: look again
                return self._decoded(path, self._read(path), sha256)
        raise self._damaged(path, "no file")

    def check(self, key: str) -> None:
        """Reads all that the bank holds of a checkpoint.

        Raises:
            StorageError: where the bank has no complete entry ``key``, or a file of it is damaged.
        """
        for task, parts in self.parts(key).items():
            for part in parts:
                self.predictions(key, task, part)

    def forget_weights(self, key: str) -> None:
        """Says of a checkpoint that its weights are gone; its predictions stay.

        Raises:
            StorageError: where the bank has no complete entry ``key``, or the store refuses.
        """
        entry = self._entry(key)
        fields = {**entry.metadata["checkpoint"], "path": None}
        self._write_metadata(entry.folder, {**entry.metadata, "checkpoint": fields})

    def remove(self, key: str) -> None:
        """Removes all that the bank holds of a checkpoint, if it holds anything.

        Raises:
            StorageError: where the store refuses.
        """
        if self._listing(key):
            self.discard(key)

    def leftovers(self) -> list[str]:
        """Folders ``KEY/VERSION`` that nothing reads: of an entry without metadata, or with a later version.

        Raises:
            StorageError: where the store cannot be read.
        """
        newest = {key: _version(entry.folder) for key, entry in self._entries("").items()}
        whole = {path.rsplit("/", 1)[0] for path in self._versions("")}
        versions = [path for path in self._listing("") if path.count("/") == 1 and _version(path)]
        return sorted(
            path for path in versions if path not in whole or _version(path) < newest.get(path.split("/")[0], 0)
        )

    def discard(self, name: str) -> None:
        """Removes the folder of a trial, or one of the ``leftovers``.

        Raises:
            StorageError: where the store refuses.
        """
        with self._faults("be removed", name):
            self._fs.delete_dir(self._path(name))

    def _file(self, key: str, task: str, part: str) -> tuple[str, str]:
        """Path and SHA-256 of one part's file."""
        entry = self._entry(key)
        held: Mapping[str, Mapping[str, Mapping[str, str]]] = entry.metadata["predictions"]
        if part not in held.get(task, {}):
            got = "only " + (", ".join(f"{name}/{each}" for name, parts in held.items() for each in parts) or "nothing")
            remedy = "name a part it holds, or start a new study"
            raise StorageError(Fault(self._place(key), f"hold {task}/{part}", got, remedy))
        file = held[task][part]
        return f"{entry.folder}/{file['file']}", file["sha256"]

    def _decoded(self, path: str, content: bytes, sha256: str) -> Predictions:
        if hashlib.sha256(content).hexdigest() != sha256:
            raise self._damaged(path, "a file that was cut short or changed since")
        try:
            return from_parquet(content)
        except (pa.ArrowException, KeyError, ValueError, TypeError, OSError) as error:
            raise self._damaged(path, f"a file that cannot be read ({error})") from error
        except StorageError as error:  # whole, but of no use: say which file it is
            raise StorageError(*(replace(fault, what=self._place(path)) for fault in error.faults)) from error

    def _damaged(self, path: str, got: str, *, kind: str = "Parquet file") -> StorageError:
        remedy = "restore the file from a copy, or move the trial's folder out of the bank: it has no vote then"
        return StorageError(Fault(self._place(path), f"be the {kind} that the trial wrote", got, remedy))

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
            with suppress(FileNotFoundError):  # replaced between listing and reading: look again
                return {entry.folder.split("/")[0]: entry for entry in self._complete(under)}
        raise StorageError(
            Fault(self._place(under), "hold still while it is read", "entries that come and go", "try again")
        )

    def _complete(self, under: str) -> Iterator[_Entry]:
        """Complete entries, each key's newest last."""
        for path in sorted(self._versions(under), key=lambda path: (_version(path), path)):
            try:
                metadata = json.loads(self._read(path))
            except ValueError:
                logger.warning("%s is cut short; the entry is passed over", self._place(path))
                continue
            try:
                record = record_of(metadata)
            except ValueError as error:
                raise self._damaged(path, str(error), kind="record") from error
            if record.key != path.split("/")[0]:  # a copied or renamed folder would give its trial a second vote
                raise self._damaged(path, f"the record of {record.key}", kind="record")
            yield _Entry(path.rsplit("/", 1)[0], metadata, record)

    def _versions(self, under: str) -> list[str]:
        """The ``KEY/VERSION/record.json`` that are there."""
        return [path for path in self._listing(under) if path.count("/") == 2 and path.endswith(f"/{_METADATA}")]

    def _listing(self, under: str) -> list[str]:
        """Everything two levels or more below the root, relative to it."""
        selector = fs.FileSelector(self._path(under), recursive=True, allow_not_found=True)
        with self._faults("be readable"):
            found = [info.path for info in self._fs.get_file_info(selector)]
        cut = len(self._base) + 1 if self._base else 0
        return [path[cut:] for path in found if path[cut:].count("/") >= 1]

    def _read(self, path: str) -> bytes:
        with (
            self._faults("be readable", path, passing=FileNotFoundError),
            self._fs.open_input_stream(self._path(path)) as stream,
        ):
            return stream.read()

    def _write_metadata(self, folder: str, metadata: Mapping[str, Any]) -> None:
        self._write(f"{folder}/{_METADATA}", json.dumps(metadata, ensure_ascii=False, indent=1).encode())

    def _write(self, path: str, content: bytes) -> None:
        if isinstance(self._fs, fs.LocalFileSystem):
            write_whole(Path(self._path(path)), content)
            return
        with self._faults("be written whole", path):
            self._fs.create_dir(self._path(path).rsplit("/", 1)[0], recursive=True)
            with self._fs.open_output_stream(self._path(path)) as stream:
                stream.write(content)

    def _delete(self, folder: str) -> None:
        with suppress(OSError):  # what stays behind is never read: it is incomplete, or an earlier version
            self._fs.delete_dir(self._path(folder))

    def _path(self, path: str) -> str:
        return "/".join(piece for piece in (self._base, path) if piece)

    def _place(self, path: str) -> str:
        return f"{self._name.rstrip('/')}/{path}"

    @contextmanager
    def _faults(self, rule: str, path: str = "", *, passing: type[OSError] | tuple[()] = ()) -> Iterator[None]:
        try:
            yield
        except passing:
            raise
        except (OSError, pa.ArrowException) as error:
            remedy = "see whether the store is there, can be reached, and has space and permission for it"
            raise StorageError(Fault(self._place(path), rule, str(error), remedy)) from error


def _version(path: str) -> int:
    """The number in ``KEY/NUMBER-XXXXXXXX[/...]``, or 0 for what is no version."""
    digits = path.split("/")[1].split("-")[0]
    return int(digits) if digits.isdigit() else 0
