"""``tutti bank`` and ``tutti second``: predictions from elsewhere, and of second-stage models, vote beside trials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tutti.cli.options import Study, local
from tutti.config.yaml_file import parse_yaml
from tutti.errors import ConfigError, Fault, StudyError
from tutti.records import CheckpointRecord
from tutti.workflows.base import StudyBase
from tutti.workflows.console import console, show_next, study_argument
from tutti.workflows.shown import show_guest
from tutti.workflows.study import open_study

Task = Annotated[str | None, typer.Option("--task", help="Which task, where the study has several.")]


def import_(
    study: Study,
    name: Annotated[str, typer.Option("--name", help="What the guest is called, such as lgbm.")],
    validation: Annotated[Path, typer.Option("--validation", metavar="FILE", help="Of the validation rows, or folds.")],
    test: Annotated[
        list[str] | None,
        typer.Option("--test", metavar="[SET=]FILE", help="Of the test rows; SET= for one of several test sets."),
    ] = None,
    unlabeled: Annotated[
        Path | None, typer.Option("--unlabeled", metavar="FILE", help="Of the unlabelled rows, for pseudo-labels.")
    ] = None,
    task: Task = None,
) -> None:
    """Lets predictions of any other model vote beside the study's trials, as a guest.

    Files have the ids of the study's rows and a column for each output, as `tutti bank export` writes them: `id,p_NAME`
    of each class or label, or the numbers. Of a study with folds `--validation` has all training rows, each predicted
    by a model that has not learnt it; use the study's folds.

    Example: `tutti bank import glue_trio --name lgbm --task CoLA --validation oof.csv --test test.csv`
    """
    opened = open_study(study)
    files = _sets(test or [], {part.partition("-")[2] for parts in opened.prepared.parts.values() for part in parts})
    given = files[""] if [*files] == [""] else files
    record = opened.import_predictions(name, validation=validation, test=given or None, unlabeled=unlabeled, task=task)
    _show(opened, record)


def export(
    study: Study,
    trial: Annotated[str, typer.Option("--trial", metavar="KEY", help="Whose, such as t0003; or a guest's name.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write.", callback=local)],
    task: Task = None,
) -> None:
    """Writes a trial's predictions as tables: the ids of validation, test and unlabelled rows, and each output.

    `tutti bank import` reads them, here or in a team mate's study of the same rows.

    Example: `tutti bank export glue_trio --trial t0003 --task CoLA --out for_the_team`
    """
    for file in open_study(study).export_predictions(trial, out, task=task):
        console.print(f"wrote {file}")


def generate(
    study: Study,
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=A,B", help="Values of a field of GenerationConfig; may be repeated."),
    ],
    trials: Annotated[
        list[str] | None,
        typer.Option("--trial", metavar="KEY", help="Whose weights write; by default the best's."),
    ] = None,
    task: Task = None,
) -> None:
    """Has texts written anew under other settings of generation, without training again.

    Each combination of values becomes a guest with texts for all rows, which ranks by its score and votes.

    Example: `tutti bank generate answers --set num_beams=1,4 --set repetition_penalty=1.0,1.2`
    """
    values = dict(_values(each) for each in settings)
    opened = open_study(study)
    _show(opened, *opened.generate(values, trials=trials or (), task=task))


def _show(opened: StudyBase, *records: CheckpointRecord) -> None:
    for record in records:
        show_guest(console, record)
    show_next(console, f"ensemble {study_argument(opened.folder)}")


def _values(setting: str) -> tuple[str, list[Any]]:
    """A setting's name and its values, each read as YAML has it."""
    name, equals, listed = setting.partition("=")
    try:
        values = parse_yaml(f"[{listed}]", what="--set") if equals else []
    except ConfigError:
        values = []
    if not name or not values:
        raise StudyError(Fault("--set", "name a setting and its values", repr(setting), "write it like num_beams=1,4"))
    return name, values


def second(
    study: Study,
    model: Annotated[str, typer.Option("--model", help="linear, boosting, or lightgbm.")] = "linear",
    columns: Annotated[
        str, typer.Option("--columns", metavar="A,B", help="Columns of numbers of the task's table, learnt from too.")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="What the guest is called.")] = "second",
    task: Task = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of its folds and of the model.")] = 0,
) -> None:
    """Fits a model to the predictions of all members, and lets it vote as one more guest.

    Its predictions of validation rows are out of fold. `linear` is logistic regression, or ridge regression of numbers.

    Example: `tutti second emotions --model boosting --columns words,upvotes`
    """
    chosen = [column for column in columns.split(",") if column]
    opened = open_study(study)
    _show(opened, opened.second(task=task, model=model, columns=chosen, name=name, seed=seed))


def _sets(files: list[str], known: set[str]) -> dict[str, Path]:
    """Files by the names of their test sets, as in ``b=FILE``; a file's own name may have ``=`` too."""
    found: dict[str, Path] = {}
    for text in files:
        name, equals, file = text.partition("=")
        key, path = (name, Path(file)) if equals and name in known else ("", Path(text))
        if key in found:
            raise StudyError(Fault("--test", "name each test set once", f"{text} again", "write SET=FILE for each"))
        found[key] = path
    return found
