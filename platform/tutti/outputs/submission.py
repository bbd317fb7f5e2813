"""Submission files: checked against the test file before anything is written."""

from __future__ import annotations

import io
import math
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tutti.errors import Fault, SubmissionError, nearest
from tutti.outputs.formats.competition import Competition
from tutti.outputs.formats.csv import Csv
from tutti.outputs.formats.glue import Glue
from tutti.outputs.formats.protocol import SubmissionFormat

if TYPE_CHECKING:
    from tutti.tasks.task import Task

TestIds = Mapping[str, Mapping[str, Sequence[str] | np.ndarray]]
FORMATS: Mapping[str, SubmissionFormat] = {"competition": Competition(), "glue": Glue(), "csv": Csv()}


@dataclass(frozen=True)
class Layouts:
    """How each task's submission is laid out.

    Attributes:
        everywhere: one of ``FORMATS`` for all tasks; none for each task's own.
        templates: samples of CSV files to follow, by ``TASK``, or by ``TASK/SET`` for one of several test sets.
        names: what a task's file is called after where not after the task itself: GLUE's own name of it.
    """

    everywhere: str | None = None
    templates: Mapping[str, Path] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def check(self, test_ids: TestIds) -> None:
        """Refuses a template of what there is no test file of, or of other rows than its test file has.

        Args:
            test_ids: per task and test part, the ids of the test file.

        Raises:
            SubmissionError: naming each template of no test file, or the first that cannot be followed.
        """
        known = {named(task, part): ids for task, tests in test_ids.items() for part, ids in tests.items()}
        rule = f"belong to a test file, of {', '.join(known) or 'which there is none'}"
        strange = [name for name in self.templates if name not in known]
        if strange:
            raise SubmissionError(
                *(
                    Fault(f"the template {name!r}", rule, "another name", nearest(name, known, otherwise="correct it"))
                    for name in strange
                )
            )
        for name, template in self.templates.items():
            Csv.by_template(template).check_ids(list(map(str, known[name])))

    def of(self, task: Task, part: str) -> SubmissionFormat:
        """The format of one part of one task.

        Raises:
            SubmissionError: where its template cannot be followed.
        """
        template = self.templates.get(named(task.name, part))
        return Csv.by_template(template) if template else FORMATS[self.everywhere or task.submission]

    def place(self, task: Task, part: str) -> tuple[str, str]:
        """The part in whose folder its file stands, and the file's name."""
        return self.of(task, part).place(self.names.get(task.name, task.name), part)


def named(task: str, part: str) -> str:
    """``TASK`` for the part ``test``, ``TASK/SET`` for ``test-SET``."""
    return "/".join((task, *part.split("-", 1)[1:]))


_SHOWN = 5  # ids or labels named in one message
_AGAIN = "run the study again on this test file"


def check(
    task: Task, *, part: str, expected: Sequence[str], ids: Sequence[str], labels: Sequence[str] | Sequence[float]
) -> None:
    """Checks that a submission has the test file's rows, each once and in the file's order, and only known labels.

    Labels of a regression are known if they are numbers.

    Args:
        part: the part's name, for the message.
        expected: the ids of the test file, in its order.
        ids: the ids that were predicted.
        labels: one label for each of ``ids``, as it would be written, or one value.

    Raises:
        SubmissionError: naming every fault.
    """
    what = f"the submission of {task.name}, {part}"
    if faults := (*_id_faults(what, list(expected), list(ids)), *_label_faults(what, task, len(ids), labels)):
        raise SubmissionError(*faults)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """The files as one zip. The same files always give the same bytes."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # Unix, on whatever system it is made
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, compress_type=zipfile.ZIP_DEFLATED)
    return sink.getvalue()


def _id_faults(what: str, expected: list[str], ids: list[str]) -> Iterator[Fault]:
    if twice := _repeated(expected):
        yield Fault(f"the test file behind {what}", "hold every id once", f"{twice} again", "correct the file")
    if len(ids) != len(expected):
        yield Fault(what, f"have the {len(expected)} rows of the test file", f"{len(ids)} rows", _AGAIN)
    if twice := _repeated(ids):
        yield Fault(what, "hold every id once", f"{twice} again", _AGAIN)
    missing, strange = set(expected) - set(ids), set(ids) - set(expected)
    if missing:
        yield Fault(what, "hold every id of the test file", f"no {_some(missing)}", _AGAIN)
    if strange:
        yield Fault(what, "hold only ids of the test file", _some(strange), _AGAIN)
    if len(ids) == len(expected) and ids != expected and not (missing or strange):
        row = next(row for row, (left, right) in enumerate(zip(ids, expected, strict=True)) if left != right)
        got = f"id {ids[row]!r} in row {row + 1}, where the file has {expected[row]!r}"
        yield Fault(what, "be in the order of the test file", got, _AGAIN)


def _label_faults(what: str, task: Task, rows: int, labels: Sequence[str | float]) -> Iterator[Fault]:
    if len(labels) != rows:
        yield Fault(what, f"have one label for each of its {rows} rows", f"{len(labels)} labels", _AGAIN)
    if task.regression:
        if strange := {str(label) for label in labels if isinstance(label, str) or not math.isfinite(label)}:
            yield Fault(what, "hold only finite numbers", _some(strange), _AGAIN)
    elif unknown := set(map(str, labels)) - set(task.class_names):
        rule = f"hold only labels of the task ({_some(task.class_names)})"
        yield Fault(what, rule, _some(unknown), "make a new study where the task's labels have changed")


def _repeated(ids: list[str]) -> str:
    return _some(each for each, count in Counter(ids).items() if count > 1)


def _some(names: Iterable[str]) -> str:
    """The first few names, in order of the alphabet unless they have one of their own, and how many more there are."""
    listed = sorted(names) if isinstance(names, set) else list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(map(repr, listed[:_SHOWN])) + more
