"""What the columns of a competition's sample submission hold: the class, decisions, probabilities, numbers or lists."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np

from tutti.config.columns import AnswerForm
from tutti.errors import Fault, SubmissionError, nearest
from tutti.outputs.submission.formats.protocol import Item, Wanted
from tutti.tasks.layouts.candidates import spelled
from tutti.tasks.number_text import parse_number
from tutti.tasks.spelling import is_placeholder, spelled_alike, spelled_like
from tutti.tasks.task import Task

_BEST = "map_at_"  # begins the names of metrics of the best few
_SHOWN = 5  # names that one message lists
_SEPARATORS = (" ", ", ", ",", ";", "|")  # between the names of one cell, tried in this order


@dataclass(frozen=True)
class Filling:
    """How the columns but that of the ids are filled.

    Attributes:
        wanted: what the items to fill in are.
        outputs: by column, the output of the task that it holds; empty where one cell holds the whole item.
        spelling: by class, or label of a list, as the file spells it.
        separator: between names in one cell; empty for a JSON list. None for no list.
        most: of a ranking, how many names a cell has.
        answers: how candidates are written; None for other tasks.
    """

    wanted: Wanted = "decisions"
    outputs: Mapping[str, str] = field(default_factory=dict)
    spelling: Mapping[str, str] = field(default_factory=dict)
    separator: str | None = None
    most: int | None = None
    answers: AnswerForm | None = None

    def item(self, item: Item, own: Sequence[str] = ()) -> Item:
        """An item with the names of the task's outputs as the file has it.

        Args:
            own: the row's candidates, in tasks that have any.
        """
        if self.separator is not None:
            assert isinstance(item, Mapping)
            if self.most is None:
                chosen = [name for name, given in item.items() if given]
            else:
                chosen = list(islice(sorted(item, key=lambda name: -float(item[name])), self.most))
                chosen = chosen[: len(own) or None]
            names = [self._spelled(name, own) for name in chosen]
            return self.separator.join(names) if self.separator else json.dumps(names, ensure_ascii=False)
        if self.outputs:
            values = item if isinstance(item, Mapping) else {str(item): 1}
            return {column: values.get(output, 0) for column, output in self.outputs.items()}
        return item if isinstance(item, Mapping) else self._spelled(str(item), own)

    def _spelled(self, name: str, own: Sequence[str]) -> str:
        return self.spelling.get(name, name) if self.answers is None else spelled(name, own, self.answers)


def filling_of_candidates(task: Task) -> Filling:
    """How rows with candidates are filled in without a sample: as training labels are, or with the best of a row."""
    answers = task.answers or "letter"
    if task.metric.startswith(_BEST):
        most = int(task.metric.removeprefix(_BEST))
        return Filling("probabilities", separator=" ", most=most, answers=answers)
    return Filling("probabilities" if _needs(task) else "decisions", answers=answers)


@dataclass(frozen=True)
class Sample:
    """The columns of a sample file but that of the ids.

    Attributes:
        columns: their names.
        cells: by column, the different cells.
        source: the file, for messages.
        separator: what stands between several labels in the task's own files.
    """

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    source: str
    separator: str | None = None

    def filling(self, task: Task) -> Filling:
        """How the columns are filled for a task.

        Raises:
            SubmissionError: if the columns or labels are those of another task.
        """
        if len(self.columns) > 1:
            return Filling(self._wanted(task), self._outputs(task))
        if task.kind.exchangeable:
            return self._of_candidates(task)
        if task.kind.exclusive:
            return self._of_class(task)
        if task.kind.generative or task.kind.sequential or task.kind.comparative:
            return Filling()
        if not task.kind.probabilistic:
            return self._of_number(task)
        if (separator := self._separator_of(task.names)) is None:
            return Filling(self._wanted(task), self._outputs(task))
        lists = [_list_of(cell, separator) for cell in self.cells[0]]
        spelling = spelled_like(task.names, [*chain.from_iterable(lists)]) or {}
        if task.metric.startswith(_BEST):
            most = int(task.metric.removeprefix(_BEST))
            return Filling("probabilities", spelling=spelling, separator=separator, most=most)
        return Filling(spelling=spelling, separator=separator)

    def _wanted(self, task: Task) -> Wanted:
        """Probabilities where the metric needs them or the file has fractions, such as 0.5 in every cell."""
        fractions = any(self._fractions(cells) for cells in self.cells)
        return "probabilities" if task.kind.probabilistic and (fractions or _needs(task)) else "decisions"

    def _outputs(self, task: Task) -> dict[str, str]:
        """The output of each column, by its name in whatever case, perhaps after a start of all, as in ``class_0``."""
        names = {spelled_alike(name): name for name in task.names} | {name: name for name in task.names}
        shared = range(min(map(len, self.columns)))
        starts = [start for start in shared if len({name[:start] for name in self.columns}) == 1]
        found = [self._by_names(names, start) for start in starts]
        by_column = next((outputs for outputs in found if None not in outputs.values()), found[0])
        if unknown := [column for column, output in by_column.items() if output is None]:
            rule = f"have columns of the task's outputs, {_some(task.names) or 'which has one'}"
            remedy = nearest(unknown[0], task.names, otherwise="name the task's own sample submission")
            raise SubmissionError(Fault(self.source, rule, f"the column {_some(map(repr, unknown))}", remedy))
        outputs = {column: output for column, output in by_column.items() if output is not None}
        if missing := [name for name in task.names if name not in outputs.values()]:
            rule, got = "have a column for each output of the task", f"none for {_some(map(repr, missing))}"
            raise SubmissionError(Fault(self.source, rule, got, "name the task's own sample submission"))
        return outputs

    def _by_names(self, names: Mapping[str, str], start: int) -> dict[str, str | None]:
        ends = {column: column[start:] for column in self.columns}
        return {column: names.get(end) or names.get(spelled_alike(end)) for column, end in ends.items()}

    def _of_class(self, task: Task) -> Filling:
        """One column of classes, of probabilities of the second of two, or of the likeliest classes."""
        (cells,), names = self.cells, task.names
        found = spelled_like(names, cells)
        fractions = self.has_fractions and spelled_like(names, [cell for cell in cells if _is_fraction(cell)]) is None
        numbers = all(is_placeholder(cell) or np.isfinite(parse_number(cell)) for cell in cells)
        if len(names) == 2 and (fractions or (_needs(task) and numbers)):
            meant = self.columns[0] if self.columns[0] in names else names[1]
            return Filling("probabilities", {self.columns[0]: meant})
        if found:
            return Filling(spelling=found)
        if separator := self._separator_of(names, least=2):
            most = max(len([*filter(None, cell.split(separator))]) for cell in cells)
            return Filling("probabilities", separator=separator, most=most)
        if fractions or all(map(is_placeholder, cells)):
            return Filling(spelling=dict(zip(names, names, strict=True)))
        raise self._of_another_task(names)

    def _of_candidates(self, task: Task) -> Filling:
        """One column of candidates, by letter, place or text, or of the best ones of each row."""
        default, places = filling_of_candidates(task), [*map(str, range(len(task.names) + 1))]
        cells = [cell for cell in self.cells[0] if not is_placeholder(cell)]
        if not cells:
            return default
        separator = self._separator_of([*task.names, *places], least=2)
        lists = [[cell] if separator is None else _list_of(cell, separator) for cell in cells]
        names = {*chain.from_iterable(lists)}
        if {*map(str.upper, names)} <= {*task.names}:
            answers: AnswerForm = "letter"
        elif names <= {*places}:
            by_cells: AnswerForm = "index" if "0" in names or task.answers != "number" else "number"
            answers = "number" if places[-1] in names and "0" not in names else by_cells
        else:
            answers = "text"
        if separator is None:
            return Filling(answers=answers)
        return Filling("probabilities", separator=separator, most=max(map(len, lists)), answers=answers)

    def _of_number(self, task: Task) -> Filling:
        filled = [cell for cell in self.cells[0] if not is_placeholder(cell)]
        if filled and not np.isfinite([parse_number(cell) for cell in filled]).any():
            raise self._of_another_task(())
        if len(task.names) > 1:
            self._outputs(task)
        return Filling(outputs=dict(zip(self.columns, task.names, strict=False)))

    def _separator_of(self, names: Sequence[str], *, least: int = 1) -> str | None:
        """What stands between names in the cells, empty for JSON lists; None where they are no lists of names.

        Args:
            least: the number of names that a cell must have somewhere.
        """
        filled = [cell for cell in self.cells[0] if not is_placeholder(cell)]
        if not filled and least == 1 and self.columns[0] not in names:
            return self.separator or _SEPARATORS[0]
        if filled and all(_json_names(cell) is not None for cell in filled):
            return ""
        known, found = {*map(spelled_alike, names)}, []
        for separator in filter(None, (self.separator, *_SEPARATORS)):
            lists = [_list_of(cell, separator) for cell in filled]
            if filled and all(known.issuperset(map(spelled_alike, names_of)) for names_of in lists):
                found.append((max(map(len, lists)), separator))
        longest = max((count for count, _ in found), default=0)
        return next((each for count, each in found if count == longest), None) if longest >= least else None

    @property
    def has_fractions(self) -> bool:
        """Whether one column has numbers from 0 to 1, some between, as a file has them that asks for probabilities."""
        return len(self.cells) == 1 and self._fractions(self.cells[0])

    @staticmethod
    def _fractions(cells: Sequence[str]) -> bool:
        filled = [cell for cell in cells if not is_placeholder(cell)]
        return any(map(_is_fraction, filled)) and all(0 <= parse_number(cell) <= 1 for cell in filled)

    def _of_another_task(self, names: Sequence[str]) -> SubmissionError:
        rule = f"have labels of the task, {', '.join(names[:_SHOWN]) or 'which are numbers'}, or none"
        filled = (repr(cell) for cell in self.cells[0] if not is_placeholder(cell))
        remedy = "name the task's own sample submission, or empty its labels"
        return SubmissionError(Fault(self.source, rule, ", ".join(islice(filled, _SHOWN)), remedy))


def _needs(task: Task) -> bool:
    return task.needs == "probabilities"


def _is_fraction(cell: str) -> bool:
    return bool(0 < parse_number(cell) < 1)


def _list_of(cell: str, separator: str) -> list[str]:
    """The names in a cell; an empty separator is that of JSON lists."""
    return [name.strip() for name in (cell.split(separator) if separator else _json_names(cell) or ())]


def _json_names(cell: str) -> list[str] | None:
    try:
        names = json.loads(cell)
    except ValueError:
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _some(names: Sequence[str] | Iterator[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
