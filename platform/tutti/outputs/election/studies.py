"""Whether the trials of several studies can vote together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from tutti.config.cleaning import Cleaning
from tutti.config.objective_weights import listed, proportional
from tutti.data.clean import CLEANED_BY, clean_rows, row_texts
from tutti.data.prepared import Prepared
from tutti.errors import Fault, StudyError, counted
from tutti.tasks.task import Task


def check_together(studies: Mapping[str, Prepared], *, by_task: bool) -> None:
    """Checks that all studies have the tasks and files of the first one, so that their trials can vote together.

    Whether the validation rows are the same is checked on the predictions.

    Args:
        by_task: whether members are chosen by task. A study then needs only one task of the first one, and votes in
            those that it has. Otherwise it needs the same tasks: objectives over other tasks cannot be compared.

    Raises:
        StudyError: naming every difference in tasks, metrics, classes, and test and unlabelled files, and every study
            that trained on the first one's validation texts.
        StorageError: if a study's rows are missing or damaged.
    """
    (first, own), *others = studies.items()
    faults = [fault for name, other in others for fault in _differences(first, own, name, other, by_task)]
    if faults:
        raise StudyError(*faults)


def _differences(first: str, own: Prepared, name: str, other: Prepared, by_task: bool) -> Iterator[Fault]:
    remedy = "leave the study out, or run it again on the same tasks"
    theirs = {task.name: task for task in other.tasks}
    names = [task.name for task in own.tasks]
    shared = [task for task in own.tasks if task.name in theirs]
    if not shared or not (by_task or len(shared) == len(names) == len(theirs)):
        rule = f"have {'the tasks' if shared else 'a task'} of {first}: {', '.join(names)}"
        if shared:
            alone = " and ".join(task.name for task in shared)
            remedy = f"set `members: {{by: task}}` in the recipe, so that it votes in {alone} alone, or leave it out"
        yield Fault(f"the study {name}", rule, ", ".join(theirs), remedy)
        return
    weights, other_weights = ({task.name: task.weight for task in prepared.tasks} for prepared in (own, other))
    if not (by_task or proportional(weights, other_weights)):
        rule = f"weigh the tasks as {first} does: {listed(weights)}"
        by_its_tasks = "set `members: {by: task}` in the recipe, or leave it out"
        yield Fault(f"the study {name}", rule, listed(other_weights), by_its_tasks)
    for task in shared:
        what = f"the study {name}, task {task.name}"
        templates, other_templates = _templates(own, task.name), _templates(other, task.name)
        if templates != other_templates:  # rows are known again by their texts
            yield Fault(what, f"have the templates of {first}, {templates}", other_templates, "leave the study out")
        if leaked := _leaked_rows(own, other, task.name):
            rule = f"not have trained on rows that {first} holds out"
            again = "leave the study out, or run it again with the same split"
            yield Fault(what, rule, f"the texts of {counted(leaked, 'such row')}", again)
        for rule, expected, got in (
            (f"have the metric that it has in {first}", task.metric, theirs[task.name].metric),
            (f"have the classes that it has in {first}", _classes(task), _classes(theirs[task.name])),
        ):
            if expected != got:
                yield Fault(what, f"{rule}, {expected}", got, remedy)
        other_origins = other.origins[task.name]
        for part, origin in own.origins[task.name].items():
            predicted = part == "unlabeled" or part.startswith("test")
            if predicted and part in other_origins and other_origins[part]["sha256"] != origin["sha256"]:
                rule = f"have the {part} rows that {first} has, those of {PurePath(origin['source']).name}"
                got = f"another content of {PurePath(other_origins[part]['source']).name}"
                yield Fault(what, rule, got, "leave the study out, or run it again on that file")


def _templates(prepared: Prepared, task: str) -> str:
    """How a task's texts are composed of columns; data of earlier versions do not say, and were not composed."""
    layout = prepared.settings.get(f"tasks.{task}", {}).get("layout", {})
    layout = {**layout, **(layout.get("columns") or {})}  # a hub's are a table's
    templates = [repr(layout[key]) for key in ("template", "template_b") if layout.get(key)]
    return " and ".join(templates) or "no template"


def _leaked_rows(own: Prepared, other: Prepared, task: str) -> int:
    """The number of validation rows of ``own`` whose texts ``other`` trained the models on that predict them."""
    steps = every_cleaning([own, other], task)

    def texts(prepared: Prepared, part: str) -> list[tuple[str, ...]]:
        rows = prepared.rows(task, part)
        if "fold" in rows:  # a fold's rows are predicted by the model that did not train on them
            rows = rows[rows["fold"] == -1]
        return row_texts(clean_rows(rows, steps))

    trained = {one_spaced(row) for row in set(texts(other, "train")) - set(texts(own, "train"))}
    return sum(one_spaced(row) in trained for row in texts(own, "validation"))


def one_spaced(texts: tuple[str, ...]) -> tuple[str, ...]:
    """A row's texts, any whitespace as one space: a tab-separated file of training rows cannot hold all of it."""
    return tuple(" ".join(text.split()) for text in texts)


def every_cleaning(studies: Sequence[Prepared], task: str) -> Cleaning:
    """All cleaning steps that any of the studies applies to a task, which make the studies' texts comparable."""
    steps = [prepared.settings[f"tasks.{task}"]["cleaning"] for prepared in studies]
    every = {key: next((each[key] for each in steps if each.get(key)), None) for key in CLEANED_BY}
    return Cleaning(**{key: value for key, value in every.items() if value})


def _classes(task: Task) -> str:
    return ", ".join(task.names) or "none: a number"
