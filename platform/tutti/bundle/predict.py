"""Predicts with a bundle. The file and those that it imports are copied into each bundle: see ``carried``.

It needs torch, transformers, tokenizers, safetensors and numpy alone; pandas, pyarrow and openpyxl where rows are data
frames, Parquet or workbooks.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from tutti.data.clean import cleaned
from tutti.data.flat_rows import MAX_TOKENS, SHARD, TokenizedRows
from tutti.data.tokenized import tokenized
from tutti.ensembling.fitted import Fitted
from tutti.ensembling.task_vote import TaskVote
from tutti.errors import Fault, StorageError, TaskFileError, TuttiError, UserError
from tutti.files import whole_file
from tutti.modeling import int8
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.model import MultiTaskModel
from tutti.tasks.layouts.candidates import from_json
from tutti.tasks.layouts.table import Table, columns_of_table
from tutti.tasks.layouts.tagged import Tagged
from tutti.tasks.task import Task
from tutti.training.machine.precision import autocast, fastest
from tutti.training.predict import are_finite, predict

MANIFEST, FORMAT = "bundle.json", 1
_SUFFIXES = (".csv", ".jsonl", ".json", ".parquet")

Columns = dict[str, "list[str] | np.ndarray"]


class Bundle:
    """An ensemble that predicts, loaded from its folder.

    Args:
        folder: of the bundle.
        device: such as ``cuda``; by default a GPU where there is one.
        quantize: ``int8`` or ``none`` in place of what the bundle says.

    Raises:
        StorageError: if a file is missing, or is not what was written.

    Example:
        >>> Bundle("bundle").predict([{"text": "a fine day"}])["label"]
    """

    def __init__(self, folder: Path | str, *, device: str | None = None, quantize: str | None = None) -> None:
        self.folder = Path(folder).absolute()
        content = _manifest(self.folder)
        self.task = Task.from_dict(content["task"], self.folder)
        vote = content["vote"]
        self._vote = TaskVote(
            self.task,
            {int(place): members for place, members in content["groups"].items()},
            None if vote is None else Fitted.from_json(self.task.kind, vote),
            None if content["decision"] is None else np.array(content["decision"]),
            content["calibrated"],
        )
        self._layout = _layout_of(content["layout"])
        self._cleaning = dict(content["cleaning"])
        if table := content["emoji_table"]:
            self._cleaning["emoji"] = str(self.folder / table)
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._members = [_Member(self.folder / each["folder"], self._device) for each in content["members"]]
        self._encodings = [each["encoding"] for each in content["members"]]
        types = [each.model.config.model_type for each in self._members]
        precisions = {fastest(self._device, model_type=each, training=content["training"]) for each in types}
        self.precision = precisions.pop() if len(precisions) == 1 else "float32"
        if (quantize or content["quantize"]) == "int8" and self._device.type == "cpu":
            self.precision = "int8"
            for member in self._members:
                member.quantise()
        self.seconds = [0.0] * len(self._members)
        self._lock = threading.Lock()

    def predict(self, rows: Any) -> Columns:
        """Predicts rows: labels with their probabilities, or numbers, as ``tutti predict`` writes them.

        Args:
            rows: a list of mappings, a mapping of columns, or a data frame, with the columns of the task's files.

        Raises:
            TaskFileError: naming a column that is missing, or a row that is wrong.
        """
        table = _table_of(rows)
        count = len(next(iter(table.values()), ()))
        if isinstance(self._layout, Tagged):
            return self.predict_texts(self._layout.columns_of_table(table, count, origin="the rows"))
        layout = self._layout.of_texts(table)
        layout = replace(layout, id=layout.id or "id") if "id" in table else layout
        names = {ours: name for ours, name in layout.names(labelled=False).items() if ours != "id" or name in table}
        places: dict[str, Any] = {"origin": "the rows", "places": range(1, count + 1), "place": "row", "unique": False}
        return self.predict_texts(columns_of_table(table, names, layout, **places)[0])

    def predict_file(self, file: Path | str) -> Iterator[Columns]:
        """As ``predict``, block by block of a file: CSV, tab-separated, JSON, Parquet or Excel, also packed."""
        source = str(file)
        layout = self._layout.with_ids(source) if isinstance(self._layout, Table) else self._layout
        for columns in layout.column_blocks(source, rows=SHARD):
            yield self.predict_texts(columns)

    def predict_texts(self, columns: Mapping[str, Sequence[str]]) -> Columns:
        """As ``predict``, of rows as layouts give them: id, text, text_b for pairs, and choices."""
        blocks = []
        with self._lock:  # tokenizers take one call at a time, and a server has several threads
            for start in range(0, len(columns["id"]), SHARD):
                blocks.append(self._predicted({name: cells[start : start + SHARD] for name, cells in columns.items()}))
        return {name: _joined([block[name] for block in blocks]) for name in blocks[0]}

    def _predicted(self, columns: Mapping[str, Sequence[str]]) -> Columns:
        texts = {name: columns[name] for name in ("text", "text_b", "choices") if name in columns}
        own = cleaned(texts, self._cleaning)
        if "choices" in own and (most := max(map(len, from_json(own["choices"])))) > len(self.task.names):
            rule = f"have at most {len(self.task.names)} candidates, as the training rows"
            raise TaskFileError(Fault("a row", rule, str(most), "take the others out"))
        choices = own.get("choices")
        return self._vote.columns(list(columns["id"]), self.outputs(own), choices, own["text"])

    def outputs(self, texts: Mapping[str, Sequence[str]]) -> list[np.ndarray]:
        """Of each member the outputs of the task's kind, float32, for cleaned texts.

        Raises:
            UserError: if a prediction is not finite.
        """
        encoded: dict[int, TokenizedRows] = {}
        outputs = []
        for number, (member, encoding) in enumerate(zip(self._members, self._encodings, strict=True)):
            began = time.perf_counter()
            if encoding not in encoded:
                encoded[encoding] = member.encoded(texts, self.task)
            outputs.append(member.predict(encoded[encoding], self.task.name, self._device, self.precision))
            self.seconds[number] += time.perf_counter() - began
        return outputs


class _Member:
    def __init__(self, folder: Path, device: torch.device) -> None:
        from transformers import AutoTokenizer

        self.folder = folder
        loaded, metadata = load_checkpoint(folder)
        self.model: MultiTaskModel = loaded.to(device)
        self.limit, self.tokenizer = metadata.limit, AutoTokenizer.from_pretrained(str(folder))

    def quantise(self) -> None:
        """Gives linear layers weights of 8 bits: those that are stored, or others of the weights in float32."""
        stored, encoder = (self.folder / int8.FILE).is_file(), self.model.encoder
        self.model.encoder = int8.with_stored(encoder, self.folder) if stored else int8.quantised(encoder)

    def encoded(self, texts: Mapping[str, Sequence[str]], task: Task) -> TokenizedRows:
        limit, pad = task.limit(self.limit), self.tokenizer.pad_token_id
        rows = TokenizedRows(tokenized(texts, self.tokenizer, limit), pad)
        if not task.swaps(limit):
            return rows
        other = tokenized({"text": texts["text_b"], "text_b": texts["text"]}, self.tokenizer, limit)
        return replace(rows, swapped=TokenizedRows(other, pad))

    def predict(self, rows: TokenizedRows, task: str, device: torch.device, precision: str) -> np.ndarray:
        options: dict[str, Any] = {"task": task, "batch_size": 1, "device": device}
        options["max_tokens"] = MAX_TOKENS.get(device.type, MAX_TOKENS["cpu"])
        for each in dict.fromkeys((precision, "float32")):
            with autocast(device, each):
                found = predict(self.model, rows, **options)
            if are_finite(found, self.model.tasks[task].kind):
                return found
        raise UserError(Fault(f"what {self.folder} predicts", "be finite", "NaN or infinity", "leave the member out"))


def _joined(parts: Sequence[Any]) -> Any:
    """Blocks of one column, lists or arrays."""
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [cell for part in parts for cell in part]


def _manifest(folder: Path) -> dict[str, Any]:
    file, remedy = folder / MANIFEST, "copy the whole bundle again"
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StorageError(Fault(str(file), "be there in a bundle", str(error), remedy)) from error
    if content.get("format") != FORMAT:
        raise StorageError(Fault(str(file), f"be of format {FORMAT}", repr(content.get("format")), "export it again"))
    return content


def _layout_of(content: Mapping[str, Any]) -> Table | Tagged:
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    return (Tagged if settings.pop("layout") == "tokens" else Table)(**settings)


def _table_of(rows: Any) -> dict[str, list[Any]]:
    """Columns of rows; raises TaskFileError where they are none."""
    rule = "be a list of objects, an object of lists, or a data frame, with a row at least"
    if hasattr(rows, "columns"):  # a data frame
        table = {str(name): rows[name].tolist() for name in rows.columns}
    elif isinstance(rows, Mapping):
        table = {str(name): list(cells) for name, cells in rows.items() if not isinstance(cells, str)}
    else:
        given = list(rows)
        if not all(isinstance(row, Mapping) for row in given):
            raise TaskFileError(Fault("the rows", rule, "something else", "send such as example.json has"))
        names = dict.fromkeys(name for row in given for name in row)
        table = {str(name): [row.get(name) for row in given] for name in names}
    if not table or len({*map(len, table.values())}) != 1 or not len(next(iter(table.values()))):
        got = "no rows" if not table or not any(table.values()) else "columns of different lengths"
        raise TaskFileError(Fault("the rows", rule, got, "send such as example.json has"))
    return table


def main(folder: Path) -> None:
    """The command ``python predict.py --input FILE --out FILE`` of a bundle."""
    parser = argparse.ArgumentParser(description=f"Predicts rows with the bundle in {folder}.")
    parser.add_argument("--input", required=True, help="rows: CSV, TSV, JSON, Parquet or Excel")
    parser.add_argument("--out", required=True, type=Path, help="what is written: .csv, .jsonl, .json or .parquet")
    parser.add_argument("--device", help="such as cuda; by default a GPU where there is one")
    parser.add_argument("--quantize", choices=("int8", "none"), help="in place of what the bundle says; CPUs alone")
    options = parser.parse_args()
    try:
        if options.out.suffix not in _SUFFIXES:
            rule = f"end in {', '.join(_SUFFIXES)}"
            raise UserError(Fault(f"--out {options.out}", rule, repr(options.out.suffix), "name the file so"))
        if options.out.resolve() == Path(options.input).resolve():
            raise UserError(Fault(f"--out {options.out}", "be another file than --input", "the same", "name another"))
        began = time.perf_counter()
        bundle = Bundle(folder, device=options.device, quantize=options.quantize)
        print(f"loaded in {time.perf_counter() - began:.1f} s, predicts in {bundle.precision}", file=sys.stderr)
        began = time.perf_counter()
        rows = _write(options.out, bundle.predict_file(options.input))
        seconds = time.perf_counter() - began
        print(f"wrote {options.out}: {rows} rows in {seconds:.1f} s, {rows / seconds:.0f} a second", file=sys.stderr)
    except TuttiError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _write(out: Path, blocks: Iterator[Columns]) -> int:
    """Writes blocks as they come, and returns the number of rows."""
    with whole_file(out) as begun:
        if out.suffix == ".parquet":
            import pandas as pd

            tables = [pd.DataFrame(columns) for columns in blocks]
            pd.concat(tables, ignore_index=True).to_parquet(begun, index=False)
            return sum(map(len, tables))
        rows = 0
        with begun.open("w", encoding="utf-8", newline="") as file:
            for columns in blocks:
                _write_block(file, columns, lines=out.suffix != ".csv", header=not rows)
                rows += len(columns["id"])
    return rows


def _write_block(file: TextIO, columns: Columns, *, lines: bool, header: bool) -> None:
    # Of float32 as many digits as it needs to be read back exactly.
    spelled = [cells if isinstance(cells, list) else list(map(str, cells)) for cells in columns.values()]
    if not lines:
        csv.writer(file).writerows([*([list(columns)] if header else []), *zip(*spelled, strict=True)])
        return
    numbers = [not isinstance(cells, list) for cells in columns.values()]
    for row in zip(*spelled, strict=True):
        cells = [float(cell) if number else cell for cell, number in zip(row, numbers, strict=True)]
        file.write(json.dumps(dict(zip(columns, cells, strict=True)), ensure_ascii=False) + "\n")
