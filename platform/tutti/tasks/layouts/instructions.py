"""Prompts with the texts to be written after them, in the formats of instruction tuning."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pandas import DataFrame

from tutti.errors import Fault
from tutti.files import write_whole
from tutti.tasks.layouts.cells import cell_text
from tutti.tasks.layouts.hub import Hub
from tutti.tasks.layouts.reading import Block, CellCheck, FileSource, raise_any
from tutti.tasks.layouts.table import Table, column_names, frame_of, table_blocks
from tutti.tasks.layouts.token_rows import Unfit, shown

Row = Mapping[str, Any]
Converted = tuple[str, str | None]
"""The prompt of a row and its target, or none where it is to be predicted."""

_ALPACA = (
    "Below is an instruction that describes a task{paired}. Write a response that appropriately completes the "
    "request.\n\n### Instruction:\n{instruction}\n\n{given}### Response: "
)
_WRITTEN = {"text": "composed_prompt", "label": "target"}
"""Our columns to those of the files that ``write`` makes, whose prompts are composed already."""


@dataclass(frozen=True)
class Format:
    """One way to write a prompt with its target.

    Attributes:
        columns: that a file must have; the last one, of targets alone, may be absent from files to predict.
        convert: makes prompt and target of a row, or raises ``Unfit``.
        has_targets_apart: whether the last column has targets alone.
    """

    columns: tuple[str, ...]
    convert: Callable[[Row], Converted]
    has_targets_apart: bool = True


def _two(prompt: str, target: str) -> Format:
    return Format((prompt, target), lambda row: (cell_text(row[prompt]), _target(row, target)))


def _target(row: Row, column: str) -> str | None:
    return cell_text(row[column]) if column in row else None


def _alpaca(row: Row) -> Converted:
    """The prompts of Stanford Alpaca, with an input and without."""
    given = cell_text(row["input"])
    paired = ", paired with an input that provides further context" if given else ""
    shown = f"### Input:\n{given}\n\n" if given else ""
    prompt = _ALPACA.format(paired=paired, instruction=cell_text(row["instruction"]), given=shown)
    return prompt, _target(row, "output")


def _nested(cell: Any) -> Any:
    """A cell that holds a list, which files of plain cells have as JSON."""
    return json.loads(cell) if isinstance(cell, str) and cell.lstrip().startswith("[") else cell


def _unnatural(row: Row) -> Converted:
    instances = _nested(row["instances"])
    first = instances[0] if isinstance(instances, list) and instances else None
    if not isinstance(first, dict) or "instruction_with_input" not in first:
        raise Unfit("have an instance with `instruction_with_input`", shown(instances), "correct the row")
    return cell_text(first["instruction_with_input"]), _target(first, "output")


def _split_text(column: str, marker: str, *, last: bool, drop: str = "") -> Callable[[Row], Converted]:
    """What stands up to a marker, at which the assistant begins to speak, and what follows it."""

    def convert(row: Row) -> Converted:
        text = cell_text(row[column])
        before, found, after = text.rpartition(marker) if last else text.partition(marker)
        if not found:
            raise Unfit(f"have an assistant's turn, which {marker.strip()!r} begins", shown(text), "take the row out")
        return before.removeprefix(drop) + ("" if drop else marker), after

    return convert


def _chat(row: Row) -> Converted:
    """The messages up to the assistant's at the end, as JSON for the chat template of each tokenizer, and that one."""
    messages = _nested(row["messages"])
    sound = isinstance(messages, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
        for one in messages
    )
    if not sound or not messages:
        rule = "have messages, a list of objects with `role` and `content`"
        raise Unfit(rule, shown(messages), "correct the row")
    said = [{"role": one["role"], "content": one["content"]} for one in messages]
    target = said.pop()["content"] if said[-1]["role"] == "assistant" else None
    if not said:
        raise Unfit("have a message before the assistant's", "none", "take the row out")
    return json.dumps(said, ensure_ascii=False), target


FORMATS: Mapping[str, Format] = {
    "input-output": _two("input", "output"),
    "prompt-completion": _two("prompt", "completion"),
    "self-instruct": _two("prompt", "completion"),
    "alpaca": Format(("instruction", "input", "output"), _alpaca),
    "unnatural-instructions": Format(("instances",), _unnatural, has_targets_apart=False),
    "chip2": Format(("text",), _split_text("text", "\n<bot>: ", last=False, drop="<human>: "), has_targets_apart=False),
    "guanaco": Format(("text",), _split_text("text", "### Assistant:", last=False), has_targets_apart=False),
    "hh": Format(("chosen",), _split_text("chosen", "\n\nAssistant:", last=True), has_targets_apart=False),
    "chat": Format(("messages",), _chat, has_targets_apart=False),
}


@dataclass(frozen=True)
class Instructions(FileSource):
    """The layout described by the module, of CSV, TSV, JSON, JSON Lines, Parquet, or of a data set of the hub.

    Attributes:
        format: a key of ``FORMATS``.
        dataset, subset: as of ``Hub``, whose splits are then the sources; None for files.
        text, label: the columns of prompts and targets, in ``input-output`` alone.
        id, sample_ids: as of ``Table``.
        group: a column that labelled rows have as their group; None for none.
    """

    format: str = "input-output"
    dataset: str | None = None
    subset: str | None = None
    text: str = "input"
    label: str = "output"
    id: str | None = None
    sample_ids: tuple[str, ...] = ()
    group: str | None = None

    @cached_property
    def _format(self) -> Format:
        return _two(self.text, self.label) if self.format == "input-output" else FORMATS[self.format]

    @cached_property
    def _hub(self) -> Hub | None:
        if self.dataset is None:
            return None
        first, *middle, last = (*self._format.columns, self._format.columns[-1])
        table = Table(text=first, text_b=middle[0] if middle else None, label=last)  # what a fingerprint covers
        return Hub(self.dataset, self.subset, table)

    def origin(self, source: str) -> str:
        return source if self._hub is None else self._hub.origin(source)

    def fingerprint(self, source: str) -> str:
        return super().fingerprint(source) if self._hub is None else self._hub.fingerprint(source)

    def read(self, source: str, *, labelled: bool, check: CellCheck | None = None) -> DataFrame:
        return next(self._frames(source, None, labelled=labelled, check=check))

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        yield from self._frames(source, rows, labelled=False, check=None)

    def write(self, rows: DataFrame, path: Path) -> None:
        """Writes JSON Lines with composed prompts, which ``read`` takes as they are."""
        table = rows[["id", *_WRITTEN]].rename(columns=_WRITTEN)
        write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_dict("records")))

    def _frames(
        self, source: str, limit: int | None, *, labelled: bool, check: CellCheck | None
    ) -> Iterator[DataFrame]:
        first, origin = 0, self.origin(source)
        table = self._ids(source)
        names = {"id": table.id, "text": "text", **({"label": "label", "group": self.group} if labelled else {})}
        known = {ours: theirs for ours, theirs in names.items() if theirs is not None}
        for columns, places, place in self._blocks(source, limit, table):
            converted = self._converted(columns, places, f"{origin}, {place}", labelled=labelled)
            rows = frame_of(
                converted,
                {ours: name for ours, name in known.items() if ours != "id" or name in converted},
                table,
                origin=origin,
                places=places,
                place=place,
                check=check,
                first_row=first,
                unique=limit is None,
            )
            # Labels of other kinds have no white space around them; a target's is the model's to write.
            yield rows.assign(label=converted["label"]) if labelled else rows
            first += len(places)

    def _ids(self, source: str) -> Table:
        """A table that names the column of ids, if there is one."""
        if self._hub is not None:
            return Table(id=self.id or ("id" if "id" in self._hub.loaded(source).column_names else None))
        first, last = self._format.columns[0], self._format.columns[-1]
        return Table(id=Table(id=self.id, text=first, label=last, sample_ids=self.sample_ids).with_ids(source).id)

    def _blocks(self, source: str, limit: int | None, table: Table) -> Iterator[Block]:
        wanted = {*self._format.columns, *filter(None, [table.id, self.group])}
        if self._hub is not None:
            yield from self._hub.table_blocks(source, limit)
            return
        if not {*self._format.columns[:1]} & {*column_names(source, wanted=wanted)}:
            wanted |= {*_WRITTEN.values()}
        yield from table_blocks(source, limit, wanted=wanted)

    def _converted(
        self, table: Mapping[str, Sequence[Any]], places: Sequence[int], where: str, *, labelled: bool
    ) -> dict[str, Sequence[Any]]:
        """The table with the columns text and label in place of those of the format."""
        form, faults = self._format, []
        if {*_WRITTEN.values()} <= table.keys():
            return {**table, **{ours: table[theirs] for ours, theirs in _WRITTEN.items()}}
        needed = form.columns if labelled or not form.has_targets_apart else form.columns[:-1]
        if lacking := [name for name in needed if name not in table]:
            got, remedy = f"the columns {', '.join(table) or 'none'}", "rename the column, or name another `format`"
            rule = f"have the column {lacking[0]!r} of the format {self.format}"
            raise_any([Fault(where.rpartition(", ")[0], rule, got, remedy)], origin=where)
        names = [name for name in form.columns if name in table]
        converted: list[Converted] = []
        for place, *cells in zip(places, *(table[name] for name in names), strict=True):
            try:
                converted.append(form.convert(dict(zip(names, cells, strict=True))))
            except Unfit as error:
                faults.append(Fault(f"{where} {place}", *error.args))
            except ValueError as error:  # messages that are no JSON
                faults.append(Fault(f"{where} {place}", "be JSON", str(error), "correct the row"))
            else:
                if labelled and converted[-1][1] is None:
                    rule = "end with a message of the assistant, to be learnt"
                    faults.append(Fault(f"{where} {place}", rule, "another's", "take the row out"))
        raise_any(faults, origin=where)
        prompts, targets = [prompt for prompt, _ in converted], [target or "" for _, target in converted]
        others = {name: cells for name, cells in table.items() if name not in form.columns}
        return {**others, "text": prompts, **({"label": targets} if labelled else {})}
