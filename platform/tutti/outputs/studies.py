"""Whether the trials of several studies can vote together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from tutti.data.clean import row_texts
from tutti.data.prepare import clean_rows
from tutti.data.prepared import Prepared
from tutti.errors import Fault, StudyError, counted
from tutti.tasks.build import CleaningSteps
from tutti.tasks.task import Task


def check_together(studies: Mapping[str, Prepared]) -> None:
    """Refuses studies whose trials do not speak of the same tasks and files as those of the first one.

    That they speak of the same validation rows is seen in their predictions.

    Raises:
        StudyError: naming every difference in tasks, metrics, classes, and test and unlabelled files, and where one
            trained on texts that another is judged on.
        StorageError: where a study's rows are gone or damaged.
    """
    (first, own), *others = studies.items()
    faults = [fault for name, other in others for fault in _differences(first, own, name, other)]
    if faults:
        raise StudyError(*faults)


def _differences(first: str, own: Prepared, name: str, other: Prepared) -> Iterator[Fault]:
    remedy = "leave the study out, or run it again on the same tasks"
    theirs = {task.name: task for task in other.tasks}
    names = [task.name for task in own.tasks]
    if sorted(names) != sorted(theirs):
        yield Fault(f"the study {name}", f"have the tasks of {first}: {', '.join(names)}", ", ".join(theirs), remedy)
        return
    for task in own.tasks:
        what = f"the study {name}, task {task.name}"
        if learnt := _learnt(own, other, task.name):
            rule = f"not have trained on rows that {first} holds out"
            again = "leave the study out, or run it again with the same split"
            yield Fault(what, rule, f"the texts of {counted(learnt, 'such row')}", again)
        for rule, said, got in (
            (f"have the metric that it has in {first}", task.metric, theirs[task.name].metric),
            (f"have the classes that it has in {first}", _classes(task), _classes(theirs[task.name])),
        ):
            if said != got:
                yield Fault(what, f"{rule}, {said}", got, remedy)
        known = other.origins[task.name]
        for part, origin in own.origins[task.name].items():
            predicted = part == "unlabeled" or part.startswith("test")
            if predicted and part in known and known[part]["sha256"] != origin["sha256"]:
                rule = f"have the {part} rows that {first} has, those of {PurePath(origin['source']).name}"
                got = f"another content of {PurePath(known[part]['source']).name}"
                yield Fault(what, rule, got, "leave the study out, or run it again on that file")


def _learnt(own: Prepared, other: Prepared, task: str) -> int:
    """How many validation rows of ``own`` have texts that ``other`` trains on while it predicts them."""
    steps = every_cleaning([own, other], task)

    def texts(prepared: Prepared, part: str) -> list[tuple[str, ...]]:
        rows = prepared.rows(task, part)
        if "fold" in rows:  # a row of a fold is predicted by those that did not train on it
            rows = rows[rows["fold"] == -1]
        return row_texts(clean_rows(rows, steps))

    trained = set(texts(other, "train")) - set(texts(own, "train"))
    return sum(each in trained for each in texts(own, "validation"))


def every_cleaning(studies: Sequence[Prepared], task: str) -> CleaningSteps:
    """What any of the studies cleans of a task's texts: with all of it done, those of one can be found in another."""
    steps = [prepared.settings[f"tasks.{task}"]["cleaning"] for prepared in studies]
    emoji = next((each["emoji"] for each in steps if each["emoji"]), None)
    emoticons = any(each["emoticons"] for each in steps)
    return CleaningSteps(emoji, emoticons, any(each["repeated_punctuation"] for each in steps))


def _classes(task: Task) -> str:
    return ", ".join(task.class_names) or "none: a number"
