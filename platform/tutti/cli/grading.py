"""``--score``: labels of test rows, where one has them after all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutti.config.study import StudyConfig
from tutti.errors import Fault, SubmissionError, nearest

if TYPE_CHECKING:
    import numpy as np

    from tutti.data.prepare import Prepared

Score = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        metavar="[TASK=]FILE",
        help="Grade on these labels of the test rows; TASK/SET= for one of several test sets. May be given again.",
    ),
]


def answers(
    config: StudyConfig, prepared: Prepared, given: Sequence[str]
) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """Labels of test rows by task and part, as ``--score`` names their files.

    Raises:
        SubmissionError: where it names no test file of the study, or its labels are not those of the rows.
        TaskFileError: where a file cannot be read.
    """
    from tutti.outputs.grade import read_labels
    from tutti.outputs.submission import named
    from tutti.tasks.build import task_spec

    tests = {named(task, part): (task, part) for task, kept in config.tasks.items() for part in kept.test_sets()}
    found: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for each in given:
        name, equals, file = each.partition("=")
        if len(tests) == 1 and (not equals or (name not in tests and Path(each).is_file())):
            name, file = next(iter(tests)), each
        if name not in tests:
            rule = f"be TASK=FILE with a test file of the study ({', '.join(tests) or 'which has none'})"
            remedy = nearest(name, tests, otherwise=f"write it like --score {next(iter(tests), 'TASK')}=FILE")
            raise SubmissionError(Fault(f"--score {each}", rule, repr(name), remedy))
        task, part = tests[name]
        if part in found.get(task, {}) or not file:
            rule, got = "name one file for each test file of the study", "a second one" if file else "none"
            raise SubmissionError(Fault(f"--score {each}", rule, got, "write it like --score TASK=FILE"))
        found.setdefault(task, {})[part] = read_labels(
            file,
            task=next(one for one in prepared.tasks if one.name == task),
            layout=task_spec(task, config.tasks[task]).extra_layout,
            expected=prepared.ids(task, part).tolist(),
        )
    return found
