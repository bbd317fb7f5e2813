"""What preparation leaves on disk, and how it is read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pandas import DataFrame

from tutti.errors import Fault, StorageError, StudyError
from tutti.files import is_plain, whole_file, write_whole
from tutti.tasks.task import Task

PREPARED_FILE = "prepared.json"
_TYPES = {
    "id": pa.string(),
    "text": pa.string(),
    "text_b": pa.string(),
    "label": pa.int32(),
    "weight": pa.float32(),
    "fold": pa.int32(),
    "probabilities": pa.list_(pa.float32()),
}


@dataclass(frozen=True)
class PartInfo:
    """One part of one task.

    Attributes:
        path: its Parquet file.
        rows: how many.
        texts_sha256: over the cleaned texts in order.
        labelled: whether it has the column ``label``.
        soft: whether it has the column ``probabilities``.
    """

    path: Path
    rows: int
    texts_sha256: str
    labelled: bool
    soft: bool = False


@dataclass(frozen=True)
class Prepared:
    """All tasks of a study, cleaned and split.

    Attributes:
        folder: where the parts are.
        tasks: in the order of the study file.
        parts: task to part (``train``, ``validation``, ``test`` or ``test-NAME``, ``unlabeled``) to its file.
        origins: task to part (or ``extraN``) to ``{"source": ..., "sha256": ...}``.
        settings: what decided the parts, under ``tasks.NAME``, and ``split``: ``{"validation": share, "folds": folds,
            "seed": seed}``.
    """

    folder: Path
    tasks: tuple[Task, ...]
    parts: Mapping[str, Mapping[str, PartInfo]]
    origins: Mapping[str, Mapping[str, Mapping[str, str]]]
    settings: Mapping[str, Mapping[str, Any]]

    def rows(self, task: str, part: str) -> DataFrame:
        """Columns id, text, text_b (pairs), label (where labelled), weight (float32, train only).

        A label is an int32 class index, or a float32 value for a regression.

        With folds, fold (int32, train only) too; with soft labels probabilities (list of float32 or null, train only).

        Raises:
            StorageError: where the file is gone or damaged.
        """
        return read_columns(self.parts[task][part].path).to_pandas()

    def ids(self, task: str, part: str) -> np.ndarray:
        """``(rows,)`` of str, in the order of the part.

        Raises:
            StorageError: where the file is gone or damaged.
        """
        return np.array(read_columns(self.parts[task][part].path, ["id"])["id"].to_pylist(), dtype=np.str_)

    def validation_ids(self) -> dict[str, np.ndarray]:
        """Per task, the ids of its validation rows in their order; raises as ``ids`` does."""
        return {task.name: self.ids(task.name, "validation") for task in self.tasks}

    def folds(self, task: str) -> np.ndarray:
        """``(rows of train,)`` int32: the fold that each row validates, from 0, or -1 where it trains in every fold.

        The rows of part ``validation`` are those at 0 or above, in this order.

        Raises:
            StorageError: where the file is gone or damaged, or the study has no folds.
        """
        return np.array(read_columns(self.parts[task]["train"].path, ["fold"])["fold"], dtype=np.int32)


def texts_hash(rows: DataFrame) -> str:
    """The SHA-256 of all texts in order; single texts and pairs never agree."""
    digest = hashlib.sha256()
    for name in ("text", "text_b"):
        if name in rows:
            digest.update(f"{name}\n".encode())
            for text in rows[name]:
                encoded = text.encode()
                digest.update(f"{len(encoded)}:".encode() + encoded)
    return digest.hexdigest()


def write_part(rows: DataFrame, path: Path) -> Path:
    """Writes a part as Parquet, whole, and returns its path.

    Raises:
        StorageError: where the file system refuses.
    """
    types = dict(_TYPES)
    if "label" in rows and rows["label"].dtype.kind == "f":
        types["label"] = pa.float32()  # values of a regression
    schema = pa.schema([(name, kind) for name, kind in types.items() if name in rows])
    with whole_file(path) as temporary:
        pq.write_table(pa.Table.from_pandas(rows[schema.names], schema=schema, preserve_index=False), temporary)
    return path


def read_columns(path: Path, names: list[str] | None = None) -> pa.Table:
    """Columns of a part's file; all of them by default.

    Raises:
        StorageError: where the file is gone or damaged.
    """
    try:
        return pq.read_table(path, columns=names, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, path.parents[1], str(error).splitlines()[0]) from error


def write_prepared(prepared: Prepared) -> None:
    """Writes the list of all parts, which makes the folder complete.

    Raises:
        StorageError: where the file system refuses.
    """
    content = {
        "tasks": [task.to_dict() for task in prepared.tasks],
        "parts": {
            task: {
                part: {
                    "file": info.path.relative_to(prepared.folder).as_posix(),
                    "rows": info.rows,
                    "texts_sha256": info.texts_sha256,
                    "labelled": info.labelled,
                    "soft": info.soft,
                }
                for part, info in parts.items()
            }
            for task, parts in prepared.parts.items()
        },
        "origins": prepared.origins,
        "settings": prepared.settings,
    }
    write_whole(prepared.folder / PREPARED_FILE, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def load_prepared(folder: Path) -> Prepared:
    """What ``prepare`` left in the folder.

    Raises:
        StudyError: where nothing was prepared there.
        StorageError: where it is damaged.
    """
    file = folder / PREPARED_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        parts = {
            task: {
                part: PartInfo(
                    folder / info["file"], info["rows"], info["texts_sha256"], info["labelled"], info.get("soft", False)
                )
                for part, info in infos.items()
            }
            for task, infos in content["parts"].items()
        }
        tasks = tuple(Task.from_dict(task) for task in content["tasks"])
        for name in (*parts, *(part for infos in parts.values() for part in infos), *(task.name for task in tasks)):
            if not is_plain(name):  # files are called so
                raise ValueError(f"the name {name!r}, which is a path")
        return Prepared(folder, tasks, parts, content["origins"], content["settings"])
    except FileNotFoundError as error:
        fault = Fault(str(folder), "hold a study's prepared data", f"no {PREPARED_FILE}", "run `tutti tune` first")
        raise StudyError(fault) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, folder, str(error).splitlines()[0]) from error


def _damaged(path: Path, folder: Path, got: str) -> StorageError:
    remedy = f"remove the folder {folder} and run `tutti tune` again"
    return StorageError(Fault(str(path), "be as preparation wrote it", got, remedy))
