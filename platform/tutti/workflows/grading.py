"""Labels of the test rows, where the user has them, to grade an ensemble on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tutti.config.study import StudyConfig
from tutti.errors import Fault, SubmissionError, nearest
from tutti.workflows.console import console as shared_console

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from tutti.data.prepared import Prepared


def answers(
    config: StudyConfig, prepared: Prepared, options: Sequence[str], *, console: Console = shared_console
) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """Reads label files, each ``[TASK[/SET]=]FILE``; returns the labels of the test rows by task and part.

    Raises:
        SubmissionError: if an option names no test file of the study, or the labels are not those of its rows.
        TaskFileError: if a file cannot be read.
    """
    from tutti.outputs.election.grade import read_labels, trained_on
    from tutti.outputs.submission.submission import named
    from tutti.tasks.build import sample_ids_of, task_spec

    tests = {named(task, part): (task, part) for task, own in config.tasks.items() for part in own.test_sets()}
    labels: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for option in options:
        name, equals, file = option.partition("=")
        whole = not equals or (name not in tests and os.path.isfile(option))  # noqa: PTH113 - Path raises on a long name
        if len(tests) == 1 and whole:
            name, file = next(iter(tests)), option
        if name not in tests:
            rule = f"be TASK=FILE with a test file of the study ({', '.join(tests) or 'which has none'})"
            remedy = nearest(name, tests, otherwise=f"write it like --score {next(iter(tests), 'TASK')}=FILE")
            raise SubmissionError(Fault(f"--score {option}", rule, repr(name), remedy))
        task, part = tests[name]
        if part in labels.get(task, {}) or not file:
            rule, got = "name one file for each test file of the study", "a second one" if file else "none"
            raise SubmissionError(Fault(f"--score {option}", rule, got, "write it like --score TASK=FILE"))
        spec = task_spec(task, config.tasks[task], sample_ids_of(config).get(task, ()))
        tested = prepared.rows(task, part)
        labels.setdefault(task, {})[part] = read_labels(
            file,
            task=next(each for each in prepared.tasks if each.name == task),
            layout=spec.extra_layout,
            expected=tested,
            cleaning=spec.cleaning,
            glue=config.tasks[task].glue,
        )
        if learnt := trained_on(prepared, task, tested):
            are = "is a training row" if learnt == 1 else "are training rows"
            console.print(f"{learnt} of {len(tested)} rows of {file} {are} too (the same texts): its score is too high")
    return labels
