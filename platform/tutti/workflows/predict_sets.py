"""Predicts whole test sets: later files as a submission of all tasks, and sets that a study was given since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from tutti.config.study import FormatName
from tutti.errors import Fault, StudyError, SubmissionError, counted, nearest
from tutti.workflows.base import StudyBase
from tutti.workflows.electorate import chosen_recipe, election_of_trials, poll_of, voting_studies
from tutti.workflows.predict import Predictors, chosen_members, connected_slots
from tutti.workflows.vote import Vote, formats_for, recipe_keys, tagging, templates_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.config.recipe import Recipe
    from tutti.orchestration.after.inference import Slots
    from tutti.outputs.election.ensemble import Tagging
    from tutti.outputs.submission.submission import Formats
    from tutti.tasks.predictions import Predictions
    from tutti.tasks.task import Task

Inputs = Mapping[str, Path | str] | Sequence[str]


@dataclass(frozen=True, eq=False)
class TestSet:
    """One set of rows to predict.

    Attributes:
        part: ``test``, or ``test-NAME``.
        rows: cleaned; id, text, text_b (pairs), choices (candidates).
        write: writes the file with tags, in tasks of tags.
    """

    task: Task
    part: str
    rows: DataFrame
    write: Tagging | None = None


def predict_tests(
    study: StudyBase,
    inputs: Inputs,
    *,
    recipe: str | None = None,
    others: Sequence[str] = (),
    submission: str | Sequence[str] = (),
    refit: bool = False,
) -> Vote:
    """Predicts files of later test rows with the members of an ensemble, on Ray, as ``ensemble`` does the study's own.

    Args:
        inputs: by task, or ``TASK/SET`` for one of several sets, a file as the task's test file; or texts TASK=FILE.
        recipe, others: as in ``ensemble``; decisions, such as offsets and thresholds, are those of the recipe.
        submission: ``competition``, ``glue`` or ``csv`` for all files, or ``TASK=SAMPLE`` to follow a sample; by
            default what the recipe and the study say. A sample of theirs may be of other rows.
        refit: whether the members are those that ``refit`` trained on all rows.

    Returns:
        The vote, with the submissions of these files: ``write`` them.

    Raises:
        StudyError: if a member's weights are missing, or an input or submission names no task of the study.
        TaskFileError: if rows cannot be read.
        SubmissionError: if a format cannot hold them.

    Example:
        >>> study.predict_tests({"OCNLI": "b1.csv", "TNEWS": "b2.csv"}, submission="competition").write("round2")
    """
    from tutti.bank.electorate import WithParts
    from tutti.outputs.election.ensemble import vote

    study = study.stored
    prepared, console = study.prepared, study.console
    name, chosen = chosen_recipe(study, recipe)
    sets = [*_read(study, inputs)]
    formats = _formats(study, chosen, sets, [submission] if isinstance(submission, str) else submission)
    ids = _by_part(sets, lambda each: each.rows["id"].to_numpy(dtype=np.str_))
    formats.check(ids, prepared.tasks)
    studies = voting_studies(study, members=chosen.members, others=others)
    tasks = {each.task.name: each.task for each in sets}
    _, _, chosen = election_of_trials(studies, chosen, wanted=tasks, writers=not refit)
    by_task = {task: chosen_members(studies, own, name, chosen, refit=refit) for task, own in tasks.items()}
    added: dict[tuple[str, str, str], Predictions] = {}
    with connected_slots(study, most=_jobs(sets, by_task)) as slots:
        for each in sets:
            predictors = by_task[each.task.name]
            console.print(f"Task {each.task.name}: {counted(len(each.rows), 'row')} by {predictors.description}")
            predicted = _predict(each, predictors, slots)
            weightless = next(iter(predicted.values()))  # in place of members whose votes count nothing
            for place, key in enumerate(predictors.manifest["members"]):
                added[key, each.task.name, each.part] = predicted.get(place, weightless)
    poll = poll_of(studies, chosen, name=name)
    voted = vote(
        replace(poll, bank=WithParts(poll.bank, added)),
        test_ids=ids,
        submission=formats,
        prompts=_by_part((each for each in sets if each.task.kind.generative), lambda each: each.rows["text"].tolist()),
        tagged=_by_part((each for each in sets if each.write), lambda each: each.write),
        recipe_keys=recipe_keys(chosen, studies),
    )
    return Vote(studies, name, chosen, voted)


def fill_bank(study: StudyBase, recipe: str | None = None) -> dict[str, list[str]]:
    """Predicts the test sets that an ensemble's members have no predictions for, since a study was given them later.

    Returns:
        By trial that had to predict, the sets as ``TASK/PART``. They are in the bank, so that ``ensemble`` needs no
        weights for them.

    Raises:
        StudyError: if a member's weights are missing.

    Example:
        >>> study.fill_bank("auto")
    """
    study = study.stored
    prepared, bank, console = study.prepared, study.bank, study.console
    name, chosen = chosen_recipe(study, recipe)
    studies = voting_studies(study, members=chosen.members)
    tests = {task: list(config.test_sets()) for task, config in study.config.tasks.items()}
    lacking: dict[tuple[str, str], set[str]] = {}
    for record in bank.records():
        parts = bank.parts(record.key)
        for task, own in tests.items():
            for part in own:
                if part not in parts.get(task, ()):
                    lacking.setdefault((task, part), set()).add(record.key)
    sets = [TestSet(task, part, prepared.rows(task.name, part)) for task in prepared.tasks for part in tests[task.name]]
    jobs: list[tuple[TestSet, Predictors]] = []
    for each in sets:
        keys = lacking.get((each.task.name, each.part), set())
        predictors = chosen_members(studies, each.task, name, chosen, only=(study.name, keys)) if keys else None
        jobs += [(each, predictors)] if predictors and predictors.checkpoints else []
    found: dict[str, dict[str, dict[str, Predictions]]] = {}
    if not jobs:
        console.print("The members have predictions for every test set.")
        return {}
    with connected_slots(study, most=max(len(predictors.checkpoints) for _, predictors in jobs)) as slots:
        for each, predictors in jobs:
            console.print(f"Task {each.task.name}, {each.part}: {counted(len(each.rows), 'row')}")
            for place, predictions in _predict(each, predictors, slots).items():
                key = predictors.manifest["members"][place].rpartition("/")[2]
                found.setdefault(key, {}).setdefault(each.task.name, {})[each.part] = predictions
    for key, predicted in found.items():
        bank.add(key, predicted)
    return {key: [f"{task}/{part}" for task in own for part in own[task]] for key, own in found.items()}


def _read(study: StudyBase, inputs: Inputs) -> Iterator[TestSet]:
    """The rows of each file, as the study's test file is read.

    Raises:
        StudyError: if a name is none of a task, or there is none.
        TaskFileError: with the faults of all files.
    """
    from tutti.data.clean import clean_rows
    from tutti.data.faults_of_all import for_all
    from tutti.tasks.build import new_rows_layout, numbering_note, sample_ids_of, task_spec

    tasks = {task.name: task for task in study.prepared.tasks}
    files = _files(inputs, tasks)
    samples = sample_ids_of(study.config)
    specs = {name: task_spec(name, study.config.tasks[name], samples.get(name, ())) for name in tasks}

    def rows_of(given: tuple[str, str]) -> DataFrame:
        name, file = given
        layout = new_rows_layout(specs[name], Path(file))
        if note := numbering_note(layout, file):
            study.console.print(note)
        return clean_rows(layout.read(file, labelled=False), specs[name].cleaning)

    frames = for_all({f"{task}/{part}": (task, file) for (task, part), file in files.items()}, rows_of)
    for (task, part), file in files.items():
        yield TestSet(tasks[task], part, frames[f"{task}/{part}"], tagging(specs[task], file))


def _files(inputs: Inputs, tasks: Mapping[str, Task]) -> dict[tuple[str, str], str]:
    """By task and part, the file that ``TASK[/SET]=FILE`` names."""
    texts = [f"{name}={file}" for name, file in inputs.items()] if isinstance(inputs, Mapping) else [*inputs]
    files: dict[tuple[str, str], str] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals and len(tasks) == 1:
            name, file = next(iter(tasks)), text
        task, slash, test_set = name.partition("/")
        remedy = f"write it like --inputs {next(iter(tasks))}=FILE"
        if task not in tasks or not file or (slash and not test_set):
            rule = f"be TASK=FILE, or TASK/SET=FILE, with a task of the study: {', '.join(tasks)}"
            raise StudyError(Fault(f"--inputs {text}", rule, repr(name), nearest(task, tasks, otherwise=remedy)))
        part = f"test-{test_set}" if slash else "test"
        if (task, part) in files:
            got = f"{files[task, part]} and {file} for {name}"
            remedy = f"name their sets, such as {task}/a={files[task, part]} and {task}/b={file}"
            raise StudyError(Fault(f"--inputs {text}", "name one file for each set", got, remedy))
        files[task, part] = file
    if not files:
        raise StudyError(
            Fault("--inputs", "name a file for a task at least", "none", "write it like --inputs TASK=FILE")
        )
    return files


def _formats(study: StudyBase, recipe: Recipe, sets: Sequence[TestSet], submission: Sequence[str]) -> Formats:
    """The formats of the files; samples that are given must have their rows, those of recipe and study need not."""
    from tutti.outputs.submission.formats.csv import Csv
    from tutti.outputs.submission.submission import named
    from tutti.tasks.layouts.candidates import from_json

    names = {named(each.task.name, each.part) for each in sets} | {each.task.name for each in sets}
    wanted, given = None, {}
    for text in submission:
        name, equals, file = text.partition("=")
        if text in get_args(FormatName):
            wanted = text
        elif equals and name in names:
            given[name] = Path(file)
        elif Path(text).is_file() and len(sets) == 1:
            given[sets[0].task.name] = Path(text)
        else:
            rule = f"be {', '.join(get_args(FormatName))}, or TASK=SAMPLE with a sample for one of {', '.join(names)}"
            remedy = nearest(name, [*get_args(FormatName), *names], otherwise="correct it")
            raise StudyError(Fault(f"--submission {text}", rule, repr(text), remedy))
    tested = {each.task.name for each in sets}
    inherited = {} if wanted else templates_of(study.config, recipe, tested)
    inherited = {name: file for name, file in inherited.items() if name in names and name not in given}
    rows: dict[str, tuple[str, ...]] = {}
    for each in sets:
        name = named(each.task.name, each.part)
        template = next((inherited[key] for key in (name, each.task.name) if key in inherited), None)
        if template and not {name, each.task.name} & given.keys():
            try:
                Csv.by_template(template).in_order(each.rows["id"].tolist())
            except SubmissionError:  # the sample of an earlier round
                rows[name] = tuple(each.rows["id"])
    choices = _by_part((s for s in sets if "choices" in s.rows), lambda s: from_json(s.rows["choices"].tolist()))
    texts = _by_part((s for s in sets if s.task.kind.spans == "one"), lambda s: s.rows["text"].tolist())
    templates = {**inherited, **given}
    return formats_for(study.config, recipe, tested, templates, choices, texts=texts, form=wanted, rows=rows)


def _by_part(sets: Sequence[TestSet] | Iterator[TestSet], value: Callable[[TestSet], Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for each in sets:
        found.setdefault(each.task.name, {})[each.part] = value(each)
    return found


def _jobs(sets: Sequence[TestSet], by_task: Mapping[str, Predictors]) -> int:
    from tutti.orchestration.after.inference import SHARD

    return max(-(-len(each.rows) // SHARD) * len(by_task[each.task.name].checkpoints) for each in sets)


def _predict(each: TestSet, predictors: Predictors, slots: Slots) -> dict[int, Predictions]:
    """By member that predicts, its predictions for the set."""
    from tutti.orchestration.after.inference import SHARD, predict_shards
    from tutti.tasks.predictions import Predictions
    from tutti.tasks.units import widened

    found: dict[int, list[np.ndarray]] = {}

    def done(number: int, _: DataFrame, outputs: list[np.ndarray]) -> None:
        found[number] = outputs

    count = -(-len(each.rows) // SHARD)
    predict_shards(
        ((number, each.rows[number * SHARD : (number + 1) * SHARD]) for number in range(count)),
        checkpoints=predictors.checkpoints,
        task=each.task,
        slots=slots,
        training=predictors.training,
        precision=None,
        started=lambda _: None,
        done=done,
    )
    ids = each.rows["id"].to_numpy(dtype=np.str_)
    of_checkpoints = []
    for checkpoint in range(len(predictors.checkpoints)):
        shards = [found[number][checkpoint] for number in range(count)]
        of_checkpoints.append(np.concatenate(widened(shards) if each.task.kind.sequential else shards))
    if each.task.kind.sequential:
        of_checkpoints = widened(of_checkpoints)
    members = predictors.vote.of_members(of_checkpoints)
    return {place: Predictions.of(each.task, ids=ids, outputs=own, labels=None) for place, own in members.items()}
