"""The files that preparation writes, and how they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pandas import DataFrame

from tutti.errors import Fault, StorageError, StudyError, first_line
from tutti.files import is_plain, whole_file, write_whole
from tutti.tasks.kinds.columns import label_array
from tutti.tasks.kinds.entities import ABSENT
from tutti.tasks.task import Task

PREPARED_FILE = "prepared.json"
REPORTED = "report-"  # begins the names of parts that are scored but neither predicted nor trained on


def is_predicted(part: str) -> bool:
    """Whether a part gets predictions in the bank."""
    return part != "train" and not part.startswith(REPORTED)


_TYPES = {
    "id": pa.string(),
    "text": pa.string(),
    "text_b": pa.string(),
    "choices": pa.string(),
    "answers": pa.string(),
    "label": pa.int32(),
    "weight": pa.float32(),
    "fold": pa.int32(),
    "probabilities": pa.list_(pa.float32()),
    "group": pa.string(),
}


@dataclass(frozen=True)
class PartInfo:
    """One part of one task.

    Attributes:
        path: the part's Parquet file.
        rows: number of rows.
        texts_sha256: SHA-256 of the cleaned texts in order, and of labels that are texts.
        labelled: whether there is a column ``label``.
        soft: whether there is a column ``probabilities``.
    """

    path: Path
    rows: int
    texts_sha256: str
    labelled: bool
    soft: bool


@dataclass(frozen=True)
class Prepared:
    """All tasks of a study, cleaned and split. Methods raise StorageError if a file is missing or damaged.

    Attributes:
        folder: contains the parts.
        tasks: in the order of the study file.
        parts: task to part (``train``, ``validation``, ``test`` or ``test-NAME``, ``unlabeled``) to its file.
        origins: task to part (or ``extraN``) to ``{"source": ..., "sha256": ...}``.
        settings: the settings that the parts depend on, under ``tasks.NAME``, and ``split``: ``{"validation": share,
            "folds": folds, "seed": seed, "fold_column": column, "group": columns}``.
        notices: what the user should know of rows that were just prepared, one line each.
    """

    folder: Path
    tasks: tuple[Task, ...]
    parts: Mapping[str, Mapping[str, PartInfo]]
    origins: Mapping[str, Mapping[str, Mapping[str, str]]]
    settings: Mapping[str, Mapping[str, Any]]
    notices: tuple[str, ...] = field(default=(), compare=False)

    def rows(self, task: str, part: str) -> DataFrame:
        """A part's rows, with columns id, text, text_b (pairs), label (if labelled), weight (float32, train only).

        A label is an int32 class index, a float32 value, a list of float32, or a text. Further columns of train are
        fold (int32) with folds, and probabilities (list of float32, or null) with soft labels; of validation, and of
        sets of questions, group (str, empty for a row of none) where the study names groups.
        """
        return read_columns(self.parts[task][part].path).to_pandas()

    def ids(self, task: str, part: str) -> np.ndarray:
        """``(rows,)`` of str, in the order of the part."""
        return np.array(read_columns(self.parts[task][part].path, ["id"])["id"].to_pylist(), dtype=np.str_)

    def labels(self, task: str, part: str) -> np.ndarray:
        """The labels of a part in the shape of the task's kind; raises as ``ids`` does."""
        return label_array(read_columns(self.parts[task][part].path, ["label"])["label"])

    def validation_rows(self) -> dict[str, DataFrame]:
        """The rows of each task's part ``validation``; raises as ``rows`` does."""
        return {task.name: self.rows(task.name, "validation") for task in self.tasks}

    def folds(self, task: str) -> np.ndarray:
        """``(rows of train,)`` int32: the fold, from 0, in which each row is validated, or -1 if it always trains.

        The rows of part ``validation`` are those with a fold of 0 or above, in this order.

        Raises:
            StorageError: if the file is missing or damaged, or the study has no folds.
        """
        return np.array(read_columns(self.parts[task]["train"].path, ["fold"])["fold"], dtype=np.int32)


def texts_hash(rows: DataFrame) -> str:
    """The SHA-256 of all texts in order, and of labels that are texts; it distinguishes single texts from pairs."""
    digest = hashlib.sha256()
    written = "label" in rows and len(rows) and isinstance(rows["label"].iloc[0], str)
    for name in ("text", "text_b", "choices", *["label"] * bool(written)):
        if name in rows:
            digest.update(f"{name}\n".encode())
            for text in rows[name]:
                encoded = text.encode()
                digest.update(f"{len(encoded)}:".encode() + encoded)
    return digest.hexdigest()


def write_part(rows: DataFrame, path: Path) -> Path:
    """Writes a part as Parquet, atomically, and returns its path.

    Raises:
        StorageError: if the file system refuses.
    """
    types = dict(_TYPES)
    if "label" in rows and rows["label"].dtype.kind == "f":
        types["label"] = pa.float32()
    elif "label" in rows and rows["label"].dtype == object:
        one = rows["label"].iloc[0] if len(rows) else None
        types["label"] = pa.string() if isinstance(one, str) else pa.list_(pa.float32())
        if getattr(getattr(one, "dtype", None), "kind", "f") == "i":  # tags of rows of several lengths
            types["label"] = pa.list_(pa.int32())
            rows = rows.assign(label=[tags[tags != ABSENT] for tags in rows["label"]])
    schema = pa.schema([(name, dtype) for name, dtype in types.items() if name in rows])
    table = rows[schema.names]
    table.attrs = {}  # which Parquet would have to spell as JSON
    with whole_file(path) as temporary:
        pq.write_table(pa.Table.from_pandas(table, schema=schema, preserve_index=False), temporary)
    return path


def write_rows(rows: DataFrame, folder: Path, task: str, part: str) -> PartInfo:
    """Writes a task's part below the folder of prepared data; raises StorageError as ``write_part`` does."""
    return PartInfo(
        path=write_part(rows, folder / task / f"{part}.parquet"),
        rows=len(rows),
        texts_sha256=texts_hash(rows),
        labelled="label" in rows,
        soft="probabilities" in rows,
    )


def read_columns(path: Path, names: list[str] | None = None) -> pa.Table:
    """Columns of a part's file; all of them by default.

    Raises:
        StorageError: if the file is missing or damaged.
    """
    try:
        return pq.read_table(path, columns=names, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, path.parents[1], first_line(error)) from error


def write_prepared(prepared: Prepared) -> None:
    """Writes prepared.json, which lists all parts and marks the folder as complete.

    Raises:
        StorageError: if the file system refuses.
    """
    content = {
        "tasks": [task.to_dict(prepared.folder) for task in prepared.tasks],
        "parts": {
            task: {
                part: {
                    "file": info.path.relative_to(prepared.folder).as_posix(),
                    **{name: value for name, value in vars(info).items() if name != "path"},
                }
                for part, info in parts.items()
            }
            for task, parts in prepared.parts.items()
        },
        "origins": prepared.origins,
        "settings": prepared.settings,
        "notices": prepared.notices,
    }
    write_whole(prepared.folder / PREPARED_FILE, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def load_prepared(folder: Path) -> Prepared:
    """Loads the result of an earlier ``prepare`` from its folder.

    Raises:
        StudyError: if nothing was prepared there.
        StorageError: if it is damaged.
    """
    file = folder / PREPARED_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        parts = {
            task: {part: PartInfo(folder / info.pop("file"), **info) for part, info in infos.items()}
            for task, infos in content["parts"].items()
        }
        tasks = tuple(Task.from_dict(task, folder) for task in content["tasks"])
        for name in (*parts, *(part for infos in parts.values() for part in infos), *(task.name for task in tasks)):
            if not is_plain(name):  # it is part of file names
                raise ValueError(f"the name {name!r}, which is a path")
        return Prepared(folder, tasks, parts, content["origins"], content["settings"], tuple(content["notices"]))
    except FileNotFoundError as error:
        fault = Fault(str(folder), "hold a study's prepared data", f"no {PREPARED_FILE}", "run `tutti tune` first")
        raise StudyError(fault) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, folder, first_line(error)) from error


def _damaged(path: Path, folder: Path, got: str) -> StorageError:
    remedy = f"remove the folder {folder} and run `tutti tune` with --resume"
    return StorageError(Fault(str(path), "be as preparation wrote it", got, remedy))
