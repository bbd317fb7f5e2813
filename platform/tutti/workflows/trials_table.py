"""The table of a study's trials, and the order of its rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rich.text import Text

from tutti.config.study import Objective, StudyConfig
from tutti.errors import Fault, StudyError, nearest
from tutti.outputs.formatting import duration, number, short, short_names
from tutti.records import Scalar, TrialRecord, varied_parameters
from tutti.search.objectives import pareto_front
from tutti.workflows.listing import Group, Line, listing, wrap

_MEASURED: Mapping[Objective, Callable[[float], str]] = {
    "gain": lambda value: f"{value:+.4f}",
    "parameters": lambda value: f"{value:,.0f}",
    "disk": lambda value: f"{value / 1e6:,.1f} MB",
}


def trials_table(
    records: Sequence[TrialRecord],
    *,
    tasks: Sequence[str],
    best: TrialRecord | None,
    width: int,
    title: str | None = None,
    objectives: Sequence[Objective] = ("score",),
    front: Collection[str] = (),
    details: bool = True,
    varied: Sequence[str] | None = None,
) -> Text:
    """A table of trials: state, score, duration, scores by task and report set, and the parameters that vary.

    What has no room in ``width`` columns stands below its trial. ``best`` is highlighted. Further ``objectives`` get
    columns after the score, except the seconds, which the duration shows. Trials whose keys are in ``front`` are
    marked.

    Args:
        details: whether there are such second lines; otherwise what has no room is left out.
        varied: the parameters to show; by default those that vary among these trials.
    """
    further = [name for name in objectives if name not in ("score", "seconds")]
    several = len(objectives) > 1
    head = ["trial", "state", *["front"] * several, "score", *further, "time"]
    names = varied_parameters(records) if varied is None else varied
    shorter = short_names(names)
    sets = sorted({name for record in records for name in record.set_scores})
    lines = [
        Line(
            [
                record.key,
                str(record.state),
                *["*" if record.key in front else ""] * several,
                number(record.score),
                *(_MEASURED[name](record.measured[name]) if name in record.measured else "–" for name in further),
                "" if record.seconds is None else duration(record.seconds),
            ],
            [
                [number(record.task_scores[task]) if task in record.task_scores else "" for task in tasks],
                [number(record.set_scores[name]) if name in record.set_scores else "" for name in sets],
                [short(record.parameters[name]) if name in record.parameters else "" for name in names],
            ],
            notes=[
                f"from {each['donor']} after epoch {each['epoch']}: {_listed(each['parameters'])}"
                for each in record.exchanges
            ],
            style="bold green" if best and record.key == best.key else "",
        )
        for record in records
    ]
    groups = [Group(tasks), Group(sets), Group(shorter, roomy=True)]
    table = listing(head, lines, width=width, groups=groups, left=2, title=title, details=details)
    renamed = [f"{new} = {name}" for name, new in zip(names, shorter, strict=True) if name != new]
    for line in wrap(", ".join(renamed).split(" "), width=width) if details else ():
        table.append(f"\n{line}", style="dim")
    return table


def outcome_table(
    study: StudyConfig,
    records: Sequence[TrialRecord],
    *,
    best: TrialRecord | None,
    width: int,
    among: Sequence[TrialRecord] | None = None,
) -> Text:
    """``trials_table`` of a study under its title; ``among`` are all trials where ``records`` are some of them."""
    among = records if among is None else among
    return trials_table(
        records,
        tasks=[*study.tasks],
        best=best,
        width=width,
        title=f"Study {study.study}",
        objectives=study.search.objectives,
        front=pareto_front(among, study.search.objectives),
        varied=varied_parameters(among),
    )


def ranked(
    records: Sequence[TrialRecord], by: str = "score", *, tasks: Sequence[str], top: int | None = None
) -> list[TrialRecord]:
    """Trials in order: by score, a task's score or an objective the best first, by anything else ascending.

    Trials that lack it come last.

    Args:
        by: ``score``, ``trial``, ``state``, ``time``, a task, an objective, or a parameter by its whole or short name.
        top: the number of trials to keep; all by default.

    Raises:
        StudyError: if nothing is called so.

    Example:
        >>> ranked(study.records(), "learning_rate", tasks=[])[0].key
    """
    parameters = [*dict.fromkeys(name for record in records for name in record.parameters)]
    whole = dict(zip(short_names(parameters), parameters, strict=True))
    fields: dict[str, Callable[[TrialRecord], Any]] = {
        **{name: _of("parameters", whole.get(name, name)) for name in (*parameters, *whole)},
        **{name: _of("measured", name) for record in records for name in record.measured},
        **{task: _of("task_scores", task) for task in tasks},
        **{name: _of("set_scores", name) for record in records for name in record.set_scores},
        "score": lambda record: record.score,
        "trial": lambda record: record.number,
        "state": lambda record: str(record.state),
        "time": lambda record: record.seconds,
    }
    if by not in fields:
        remedy = nearest(by, fields, otherwise="name one of them")
        raise StudyError(Fault("--sort", f"be one of {', '.join(fields)}", repr(by), remedy))
    descending = by in {"score", "gain", *tasks, *(name for record in records for name in record.set_scores)}
    values = {record.key: fields[by](record) for record in records}
    known = [record for record in records if values[record.key] is not None]
    numbers = all(isinstance(values[record.key], int | float) for record in known)
    known.sort(key=lambda record: values[record.key] if numbers else str(values[record.key]), reverse=descending)
    return [*known, *(record for record in records if values[record.key] is None)][:top]


def _of(attribute: str, name: str) -> Callable[[TrialRecord], Any]:
    return lambda record: getattr(record, attribute).get(name)


def _listed(parameters: Mapping[str, Scalar]) -> str:
    return " ".join(f"{name}={short(value)}" for name, value in sorted(parameters.items()))
