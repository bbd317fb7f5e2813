"""Submission files: checked against the test file before anything is written."""

from __future__ import annotations

import io
import math
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti.errors import Fault, SubmissionError, nearest
from tutti.outputs.submission.formats.competition import Competition
from tutti.outputs.submission.formats.csv import Csv
from tutti.outputs.submission.formats.filling import filling_of_candidates
from tutti.outputs.submission.formats.glue import Glue, official, plain, spelled
from tutti.outputs.submission.formats.protocol import Item, SubmissionFormat
from tutti.tasks.layouts.tags import piece_of
from tutti.tasks.number_text import shortest

if TYPE_CHECKING:
    from tutti.tasks.task import Task

TestIds = Mapping[str, Mapping[str, Sequence[str] | np.ndarray]]
FORMATS: Mapping[str, SubmissionFormat] = {"competition": Competition(), "glue": Glue(), "csv": Csv()}


@dataclass(frozen=True)
class Formats:
    """The format of each task's submission.

    Attributes:
        format: the name of the format, of ``FORMATS``, for all tasks; none for each task's own.
        templates: sample CSV files to follow, by ``TASK``, or by ``TASK/SET`` for one of several test sets, which goes
            before the former.
        glue_tasks: by task that writes a file in the format ``glue``, the GLUE task that it is, whose official name the
            file has.
        separators: by task whose files have several labels in one cell, what stands between them.
        texts: by task with at most one span of each row, and test part, the text of each row.
        choices: by task whose rows have candidates, and test part, the candidates of each row.
        rows: by ``TASK`` or ``TASK/SET``, the ids to write in place of those of its sample, which is of other rows.
    """

    format: str | None = None
    templates: Mapping[str, Path] = field(default_factory=dict)
    glue_tasks: Mapping[str, str] = field(default_factory=dict)
    separators: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Mapping[str, Sequence[Sequence[str]]]] = field(default_factory=dict)
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)

    def check(self, test_ids: TestIds, tasks: Sequence[Task]) -> None:
        """Checks that each template belongs to a test file and has its rows, and no labels of another task, and that
        the format can hold what the task's labels are.

        Args:
            test_ids: by task and test part, the ids of the test file.

        Raises:
            SubmissionError: naming each template without a test file, or the first that cannot be followed.
        """
        ids_by_name = {named(task, part): ids for task, tests in test_ids.items() for part, ids in tests.items()}
        rule = f"belong to a test file, of {', '.join(ids_by_name) or 'which there are none'}"
        faults = [
            Fault(f"the template {name!r}", rule, "another name", nearest(name, ids_by_name, otherwise="correct it"))
            for name in self.templates
            if name not in {*ids_by_name, *(task for task, tests in test_ids.items() if tests)}
        ]
        if faults:
            raise SubmissionError(*faults)
        for task in tasks:
            for part, ids in test_ids.get(task.name, {}).items():
                form = self.of(task, part)
                if isinstance(form, Csv) and form.order is not None:
                    form.in_order(list(map(str, ids)))
                    form.filling(task)
                elif isinstance(form, Glue) and not task.kind.exclusive and task.names:
                    rule, got = "have one label or number per row", task.kind.describe(task.names)
                    remedy = "set `submission: csv` or `submission: competition`"
                    raise SubmissionError(Fault(f"the glue submission of {task.name}, {part}", rule, got, remedy))

    def notes(self, task: Task, part: str) -> Iterator[str]:
        """What a template changes in the labels of one part of one task, or cannot get."""
        form = self.of(task, part)
        if not isinstance(form, Csv) or form.order is None:
            return
        filling = form.filling(task)
        changed = {own: theirs for own, theirs in filling.spelling.items() if own != theirs}
        if changed:
            listed = ", ".join(f"{theirs} for {own}" for own, theirs in [*changed.items()][:_SHOWN])
            more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            yield f"Labels of {task.name}, {part} are spelled as in {Path(form.source).name}: {listed}{more}."
        elif filling.spelling and form.has_fractions and not {*form.cells[0]} & {*task.names}:
            yield (
                f"{Path(form.source).name} has numbers such as {form.cells[0][0]} as labels, and the submission of "
                f"{task.name}, {part} has classes: where probabilities are asked for, take those of `tutti predict`."
            )

    def of(self, task: Task, part: str) -> SubmissionFormat:
        """The format of one part of one task.

        Raises:
            SubmissionError: if its template cannot be followed.
        """
        template = self.templates.get(named(task.name, part)) or self.templates.get(task.name)
        if template:
            form = Csv.by_template(template, self.separators.get(task.name))
            return replace(form, order=self.rows.get(named(task.name, part), form.order))
        return FORMATS[self.format or task.submission]

    def place(self, task: Task, part: str) -> tuple[str, str]:
        """The part whose folder the file goes to, and the file's name."""
        form = self.of(task, part)
        return form.place(self._kind(task) if isinstance(form, Glue) else task.name, part)

    def items(self, task: Task, part: str, *, decided: np.ndarray, outputs: np.ndarray) -> Sequence[Item]:
        """What the file of one part of one task says of each row, by the names of the task.

        It is probabilities where the metric needs these, unless a sample file or GLUE's format has no place for them.

        Args:
            decided: the decisions for its rows.
            outputs: the rows' outputs, probabilities at the ensemble's temperature.
        """
        form = self.of(task, part)
        if isinstance(form, Csv) and form.order is not None:
            wanted = form.filling(task).wanted
        else:
            wanted = "decisions" if isinstance(form, Glue) or task.needs != "probabilities" else "probabilities"
        if wanted == "decisions":
            return task.kind.spell(decided, task.names)
        rows = outputs.astype(np.float32)
        return [dict(zip(task.names, map(shortest, row), strict=True)) for row in rows]

    def render(self, task: Task, part: str, ids: Sequence[str], items: Sequence[Item]) -> bytes:
        """The content of the file of one part of one task; raises SubmissionError as the format does."""
        return self.of(task, part).render(ids, self.filled(task, part, items))

    def shown(self, task: Task, part: str, ids: Sequence[str], items: Sequence[Item]) -> list[dict[str, Any]]:
        """The rows of that file by the names of its columns, in its order: those of a sample, or id and label."""
        form, cells = self.of(task, part), self.filled(task, part, items)
        id_name, *names = form.header if isinstance(form, Csv) else ("id", "label")
        named = [each if isinstance(each, Mapping) else {names[0]: each} for each in cells]
        by_id = {row: {id_name: row, **each} for row, each in zip(ids, named, strict=True)}
        return [by_id[row] for row in (form.in_order(by_id) if isinstance(form, Csv) else ids)]

    def filled(self, task: Task, part: str, items: Sequence[Item]) -> Sequence[Item]:
        """What that file has for each row, from ``items``."""
        form = self.of(task, part)
        if task.kind.spans == "one":
            texts = self.texts.get(task.name, {}).get(part) or [""] * len(items)
            items = [piece_of(text, task.unit, str(item)) for text, item in zip(texts, items, strict=True)]
        if task.kind.exchangeable and not isinstance(form, Glue):
            sampled = form.filling(task) if isinstance(form, Csv) and form.order is not None else None
            filling = sampled or filling_of_candidates(task)
            own = self.choices.get(task.name, {}).get(part) or [()] * len(items)
            items = list(map(filling.item, items, own))
        elif isinstance(form, Glue) and task.kind.exclusive:
            items = spelled(self.place(task, part)[1], [str(item) for item in items])
        elif isinstance(form, Csv) and form.order is not None:
            items = [*map(form.filling(task).item, items)]
        elif isinstance(form, Csv) and task.kind.exclusive and len(task.names) == 2:
            items = [{task.names[1]: item[task.names[1]]} if isinstance(item, Mapping) else item for item in items]
        return items

    def _kind(self, task: Task) -> str:
        """The GLUE task that names the file; the task's own name where another file would have the same one."""
        kind = self.glue_tasks.get(task.name, task.name)
        same = [name for name, other in self.glue_tasks.items() if plain(other) == plain(kind)]
        misleading = official(task.name) not in (None, official(kind))
        return task.name if len(same) > 1 and not misleading else kind


def named(task: str, part: str) -> str:
    """``TASK`` for the part ``test``, ``TASK/SET`` for ``test-SET``."""
    return "/".join((task, *part.split("-", 1)[1:]))


_SHOWN = 5  # ids or labels that one message lists
_AGAIN = "run the study again on this test file"


def check(task: Task, *, part: str, expected: Sequence[str], ids: Sequence[str], labels: Sequence[Item]) -> None:
    """Checks that a submission has the test file's rows, each once and in order, and only labels of the task.

    A number may be any finite one.

    Args:
        part: the part's name, for messages.
        expected: the ids of the test file, in its order.
        ids: the predicted ids.
        labels: one item for each of ``ids``, by the names of the task.

    Raises:
        SubmissionError: naming every fault.
    """
    what = f"the submission of {task.name}, {part}"
    if faults := (*_id_faults(what, list(expected), list(ids)), *_label_faults(what, task, len(ids), labels)):
        raise SubmissionError(*faults)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """The files as one zip archive. The same files always give the same bytes."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # Unix, on whatever system it is made
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, compress_type=zipfile.ZIP_DEFLATED)
    return sink.getvalue()


def _id_faults(what: str, expected: list[str], ids: list[str]) -> Iterator[Fault]:
    if repeated := _repeated(expected):
        yield Fault(f"the test file behind {what}", "hold every id once", f"{repeated} again", "correct the file")
    if len(ids) != len(expected):
        yield Fault(what, f"have the {len(expected)} rows of the test file", f"{len(ids)} rows", _AGAIN)
    if repeated := _repeated(ids):
        yield Fault(what, "hold every id once", f"{repeated} again", _AGAIN)
    missing, unknown = set(expected) - set(ids), set(ids) - set(expected)
    if missing:
        yield Fault(what, "hold every id of the test file", f"no {_some(missing)}", _AGAIN)
    if unknown:
        yield Fault(what, "hold only ids of the test file", _some(unknown), _AGAIN)
    if len(ids) == len(expected) and ids != expected and not (missing or unknown):
        row = next(row for row, (left, right) in enumerate(zip(ids, expected, strict=True)) if left != right)
        got = f"id {ids[row]!r} in row {row + 1}, where the file has {expected[row]!r}"
        yield Fault(what, "be in the order of the test file", got, _AGAIN)


def _label_faults(what: str, task: Task, rows: int, labels: Sequence[Item]) -> Iterator[Fault]:
    if len(labels) != rows:
        yield Fault(what, f"have one label for each of its {rows} rows", f"{len(labels)} labels", _AGAIN)
    several = [label for label in labels if isinstance(label, Mapping)]
    plain = [label for label in labels if not isinstance(label, Mapping)] if len(several) < len(labels) else []
    numbers: list[str | float] = [value for label in several for value in label.values()]
    if not (task.kind.probabilistic or task.kind.generative):
        numbers += plain
    if invalid := {str(value) for value in numbers if isinstance(value, str) or not math.isfinite(value)}:
        yield Fault(what, "hold only finite numbers", _some(invalid), _AGAIN)
    whole = task.kind.probabilistic and not task.kind.sequential
    names = {name for label in several for name in label} | ({*map(str, plain)} if whole else set())
    if unknown := names - set(task.names):
        rule = f"hold only labels of the task ({_some(task.names)})"
        yield Fault(what, rule, _some(unknown), "make a new study where the task's labels have changed")


def _repeated(ids: list[str]) -> str:
    return _some(row for row, count in Counter(ids).items() if count > 1)


def _some(names: Iterable[str]) -> str:
    """The first few names, sorted if they are a set, and the number of the others."""
    listed = sorted(names) if isinstance(names, set) else list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(map(repr, listed[:_SHOWN])) + more
