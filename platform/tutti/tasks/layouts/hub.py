"""Data sets of the Hugging Face hub, or local copies of them, read by the library ``datasets``."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pandas import DataFrame

from tutti.errors import Fault, TaskFileError, first_line, nearest
from tutti.tasks.layouts.delimited import next_of_any_length
from tutti.tasks.layouts.reading import Block, CellCheck, check_text, raise_any
from tutti.tasks.layouts.table import Table, frame_of, without_id

if TYPE_CHECKING:
    from datasets import Dataset


_PLAIN = ("string", "large_string", "int32", "int64")  # types of columns that may be ids


@dataclass(frozen=True)
class Hub:
    """The layout described by the module. A source is the name of a split; class labels are read as their names.

    Attributes:
        dataset: a hub id, a folder of data files, or a folder written by ``save_to_disk``.
        subset: the configuration's name, where the data set has several.
        columns: names of the columns.
    """

    dataset: str
    subset: str | None = None
    columns: Table = field(default_factory=Table)

    def origin(self, source: str) -> str:
        subset = f" ({self.subset})" if self.subset else ""
        return f"{self.dataset}{subset}, split {source!r}"

    def fingerprint(self, source: str) -> str:
        # Not the library's fingerprint, which for a folder depends on its path and date.
        data = self.loaded(source)
        names = [name for name in self._wanted(labelled=True) if name in data.column_names]
        return self.digest(source, names, self._class_order(data))

    def digest(self, source: str, names: Sequence[str], classes: Sequence[str] | None) -> str:
        """The hash of these columns, and of the classes of which rows hold indices."""
        digest = hashlib.sha256(json.dumps(classes).encode())
        for row in self.loaded(source).select_columns(names):
            digest.update(json.dumps(row, default=str).encode())
        return digest.hexdigest()

    def table_blocks(self, source: str, limit: int | None) -> Iterator[Block]:
        """Blocks of at most so many rows, or one of all; a split without rows gives one empty block."""
        data = self.loaded(source)
        size = limit or max(len(data), 1)
        for start in range(0, max(len(data), 1), size):
            part = data[start : start + size]
            yield part, range(start + 1, start + 1 + len(next(iter(part.values()), []))), "row"

    def read(self, source: str, *, labelled: bool, check: CellCheck | None = None) -> DataFrame:
        data = self.loaded(source)
        names, wanted = self.columns.names(labelled=labelled), self._wanted(labelled=labelled)
        raise_any([*self._date_faults(source, data, wanted)], origin=self.origin(source))
        # pandas reads single columns, and has names of its own for those without one, such as "Unnamed: 0".
        columns: dict[str, list[Any]] = {name: [] for name in [*self._checked_header(source), *data.column_names]}
        columns |= {name: _values(data, name) for name in wanted if name in data.column_names}
        names = without_id(names, columns) if labelled else names
        origin, places = self.origin(source), list(range(1, 1 + len(data)))
        return frame_of(columns, names, self.columns, origin=origin, places=places, place="row", check=check)

    def _wanted(self, *, labelled: bool) -> list[str]:
        """All columns that may be read, in an order of their own."""
        names = self.columns.names(labelled=labelled)
        return list(dict.fromkeys([*names.values(), *sorted(self.columns.wanted(names))]))

    def _date_faults(self, source: str, data: Dataset, names: Collection[str]) -> Iterator[Fault]:
        """Faults of JSON's columns in which the library took texts such as 2020-01-01 for dates, as it always does."""
        for column in data.features.arrow_schema if data.info.builder_name == "json" else ():
            if column.name in names and pa.types.is_temporal(column.type):
                remedy = "read the file by layout table, which takes them as they are"
                yield Fault(f"{self.origin(source)}, column {column.name!r}", "hold texts", "dates", remedy)

    def class_order(self, source: str) -> tuple[str, ...]:
        return self._class_order(self.loaded(source))

    def _class_order(self, data: Dataset) -> tuple[str, ...]:
        return tuple(_class_names(data, self.columns.label) or ()) if self.columns.label in data.features else ()

    def notices(self, source: str) -> tuple[str, ...]:
        return ()

    def further_columns(self, source: str) -> dict[str, Sequence[object]]:
        data = self.loaded(source)
        used = self._wanted(labelled=True)
        plain = [name for name, feature in data.features.items() if getattr(feature, "dtype", None) in _PLAIN]
        return {name: list(data[name]) for name in plain if name not in used}

    def write(self, rows: DataFrame, path: Path) -> None:
        """Writes a table with the same columns, for the layout ``table``; the suffix selects the format."""
        self.columns.write(rows, path)

    @cached_property
    def _builder(self) -> Any:
        """What the library knows of the data files; for those of the hub, it asks the hub."""
        import datasets

        return datasets.load_dataset_builder(self.dataset, self.subset)

    def _load_files(self, split: str) -> Dataset:
        """Loads data files. Cells of CSV files whose types nobody declared stay as they are written.

        By default pandas guesses: the id 007 would become 7, and the text None an empty one.
        """
        import datasets

        names = tuple(self._wanted(labelled=True))
        # Only these columns: an empty cell in a later file would not fit the type of a number's column.
        verbatim = {"keep_default_na": False, "converters": dict.fromkeys(names, str), "usecols": names.__contains__}
        try:
            attempts: list[dict[str, Any]] = [verbatim if _is_csv_without_types(self._builder) else {}]
        except ValueError:  # offline, the cache has only what was loaded before, with the same options
            attempts = [verbatim, {}]
        for options in attempts[:-1]:
            with suppress(ValueError):
                return datasets.load_dataset(self.dataset, self.subset, split=split, **options)
        return datasets.load_dataset(self.dataset, self.subset, split=split, **attempts[-1])

    def _checked_header(self, split: str) -> list[str]:
        """The header of a split's CSV files on this machine, if there are any."""
        header: list[str] = []
        parts = re.split(r"\W", split)  # of an expression, such as train[:100]
        for name, file, separator in self._csv_files():
            if {name, "all"} & {*parts}:
                header = _checked_header(file, separator=separator)
        return header

    def _csv_files(self) -> Iterator[tuple[str, Path, str]]:
        """The split, path and separator of each CSV file on this machine, unless the data set's card says how to read
        them: other options of pandas make other cells of a line.
        """
        if not Path(self.dataset).is_dir() or self._is_saved():
            return
        builder = self._builder
        if not _is_csv_without_types(builder):
            return
        usual, options = type(builder.config)().pd_read_csv_kwargs, builder.config.pd_read_csv_kwargs
        separator = options["sep"]
        same = usual | {key: options[key] for key in ("sep", "on_bad_lines")}  # that skips no line if columns are named
        if len(separator) > 1 or options != same:
            return
        for split, files in builder.config.data_files.items():
            for file in map(Path, files):
                if file.suffix.lower() in (".csv", ".tsv"):  # otherwise it is packed
                    yield str(split), file, separator

    def _is_saved(self) -> bool:
        return any((Path(self.dataset) / file).is_file() for file in ("dataset_dict.json", "state.json"))

    def loaded(self, split: str) -> Dataset:
        """The rows of a split; raises TaskFileError where they cannot be loaded."""
        import datasets  # slow to import

        try:
            if not self._is_saved():
                return self._load_files(split)
            if self.subset:
                rule, remedy = "be read without `subset`: save_to_disk wrote one data set there", "take `subset` out"
                raise TaskFileError(Fault(self.dataset, rule, repr(self.subset), remedy))
            saved = datasets.load_from_disk(Path(self.dataset))
        except (ValueError, OSError, KeyError, datasets.exceptions.DatasetsError) as error:
            # The message of this one says nothing of what went wrong.
            is_general = isinstance(error, datasets.exceptions.DatasetGenerationError)
            cause = (error.__cause__ if is_general else None) or error
            if isinstance(cause, UnicodeDecodeError):  # which does not say in what file, of any split
                for _, file, _ in self._csv_files():
                    check_text(str(file), remedy="save the file as UTF-8")
            got = first_line(cause)
            remedy = "check `dataset`, `subset` and the split's name, and whether the hub can be reached"
            raise TaskFileError(Fault(self.origin(split), "be loadable by `datasets`", got, remedy)) from error
        splits = saved if isinstance(saved, datasets.DatasetDict) else {str(saved.split or "train"): saved}
        if split not in splits:
            remedy = nearest(split, splits, otherwise="name one of these")
            raise TaskFileError(Fault(self.origin(split), "be a split", f"the splits {', '.join(splits)}", remedy))
        return splits[split]


def _is_csv_without_types(builder: Any) -> bool:
    return getattr(builder, "name", None) == "csv" and builder.info.features is None


def _checked_header(file: Path, *, separator: str) -> list[str]:
    """The cells of a CSV file's first line."""
    header: list[str] = []
    faults, line = [], 1
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter=separator)
        while (row := next_of_any_length(reader)) is not None:
            header = header or row
            if separator == "\t" and any("\t" in cell and "\n" in cell for cell in row):
                got, remedy = "several lines in quotes", "use layout table, which takes quotation marks as they are"
                faults.append(Fault(f"{file}, line {line}", "be one row", got, remedy))
            elif len(row) != len(header) and "".join(row).strip():
                rule, remedy = f"have {len(header)} columns like the header", "quote cells that hold a separator"
                faults.append(Fault(f"{file}, line {line}", rule, str(len(row)), remedy))
            line = reader.line_num + 1
    raise_any(faults, origin=str(file))
    return header


def _values(data: Dataset, name: str) -> list[Any]:
    names, values = _class_names(data, name), list(data[name])
    if names is None:
        return values

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(each) for each in value]
        return names[value] if value is not None and value >= 0 else None

    return list(map(named, values))


def _class_names(data: Dataset, column: str) -> list[str] | None:
    feature = data.features[column]
    return getattr(getattr(feature, "feature", feature), "names", None)  # only class labels, and lists of them, have
