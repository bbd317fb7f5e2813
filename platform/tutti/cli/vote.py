"""``tutti ensemble`` and ``tutti pseudo-label``: let the best checkpoints vote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutti.cli import stores
from tutti.cli.browse import Study
from tutti.cli.console import console
from tutti.cli.electorate import With, beside, electorate, electorate_of, voting_studies
from tutti.cli.grading import Score, answers
from tutti.config.study import StudyConfig
from tutti.errors import Fault, SubmissionError, counted
from tutti.files import sha256_of

if TYPE_CHECKING:
    from tutti.config.recipe import Recipe
    from tutti.data.prepare import Prepared
    from tutti.outputs.members import Rule
    from tutti.outputs.pseudo_report import PseudoLabelReport
    from tutti.outputs.submission import Layouts, TestIds

RecipeName = Annotated[
    str | None, typer.Option("--recipe", metavar="NAME|FILE", help="A recipe; by default the study's own.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to write; by default in the study.")]


def ensemble(
    study: Study, recipe: RecipeName = None, others: With = None, out: Out = None, score: Score = None
) -> None:
    """Lets the best checkpoints vote: submission files and a card. Needs no GPU and no weights.

    The ensemble and the best trial are scored on rows that had no part in choosing them, with 95 % intervals.

    Example: `tutti ensemble glue_trio --recipe auto --out submission`
    """
    from rich.table import Table

    from tutti.cli.progress import number
    from tutti.config.load import load_recipe
    from tutti.outputs.card import said, signed
    from tutti.outputs.ensemble import write_ensemble

    config, folder, prepared = stores.open_folder(study)
    name, chosen = load_recipe(recipe or config.ensemble.recipe)
    if changed := tuple(_changed_test_files(config, prepared)):
        raise SubmissionError(*changed)
    target = out or folder.ensembles / name
    card = write_ensemble(
        study=config.study,
        recipe_name=name,
        tasks=prepared.tasks,
        validation=prepared.validation_ids(),
        test_ids=test_ids(config, prepared),
        bank=electorate(config, folder, prepared, members=chosen.members, others=others or ()),
        rule=rule_of(chosen),
        submission=layouts(config, chosen),
        out=target,
        answers=answers(config, prepared, score or ()),
    )
    console.print(f"Study {config.study}, recipe {name}: scores on the validation rows; below, nested estimates")
    table = Table()
    table.add_column("")
    for column in (*(task.name for task in prepared.tasks), "score"):
        table.add_column(column, justify="right")
    for single in card.singles:
        scores = (number(single.task_scores.get(task.name)) for task in prepared.tasks)
        table.add_row(single.key, *scores, number(single.objective))
    if any(task.score for task in card.tasks):
        table.add_section()
        for label, style, name, show in (
            ("best trial", "", "single", said),
            ("ensemble", "bold green", "score", said),
            ("gain", "", "gain", signed),
        ):
            mean = card.objective if name == "score" else getattr(card, name)
            table.add_row(label, *(show(getattr(task, name)) for task in card.tasks), show(mean), style=style)
    console.print(table)
    for one in card.graded:
        console.print(
            f"On {counted(one.rows, 'labelled row')} of {one.task}, {one.part}: {one.metric} {number(one.score)}, "
            f"the best trial alone {number(one.single)}"
        )
    for remark in card.remarks:
        console.print(remark, soft_wrap=True)
    for file in (*card.files, "card.json", "card.md"):
        console.print(f"wrote {target / file}", soft_wrap=True)


def rule_of(recipe: Recipe) -> Rule:
    """How a recipe's ensemble is made."""
    from tutti.outputs.members import Rule

    return Rule(
        **recipe.members.model_dump(exclude={"studies"}),
        method=recipe.method,
        decision=recipe.decision,
        calibration=recipe.calibration,
    )


def test_ids(config: StudyConfig, prepared: Prepared) -> TestIds:
    """Per task and test part, the ids of the test file in its order."""
    return {
        task.name: {part: prepared.ids(task.name, part) for part in config.tasks[task.name].test_sets()}
        for task in prepared.tasks
    }


def layouts(config: StudyConfig, recipe: Recipe) -> Layouts:
    """How a recipe's submission is laid out."""
    from tutti.outputs.submission import Layouts

    names = {name: task.glue for name, task in config.tasks.items() if task.glue is not None}
    return Layouts(recipe.submission.format, recipe.submission.templates, names)


def _changed_test_files(config: StudyConfig, prepared: Prepared) -> Iterator[Fault]:
    """A fault for each test file with another content than the study read. One that is gone may lie elsewhere."""
    for name, task in config.tasks.items():
        for part, file in task.test_sets().items() if task.layout != "hub" else ():
            with suppress(OSError):
                if sha256_of(Path(file)) != prepared.origins[name][part]["sha256"]:
                    rule = "be the test file that the study was prepared from"
                    yield Fault(file, rule, "another content", "restore the file, or start a study with the new one")


def pseudo_label(study: Study, recipe: RecipeName = None, others: With = None, out: Out = None) -> None:
    """Labels the unlabelled rows that the recipe chooses: one file per task, in the task's own training layout.

    The next study's `extra_train:` takes each file. How often labels are right is estimated by class. Exit code 1 where
    no task got a file: no row was chosen, or the labels drift from the training rows' class shares.

    Example: `tutti pseudo-label chinese_trio --recipe baseline`
    """
    from tutti.config.load import load_recipe
    from tutti.ensembling.pseudo import Labelling
    from tutti.outputs.pseudo_labels import write_pseudo_labels
    from tutti.outputs.pseudo_pool import pools
    from tutti.tasks.build import task_specs

    config, folder, prepared = stores.open_folder(study)
    name, chosen = load_recipe(recipe or config.ensemble.recipe)
    target = out or folder.pseudo_labels / name
    studies = voting_studies(config, folder, prepared, members=chosen.members, others=others or ())
    report = write_pseudo_labels(
        study=config.study,
        recipe_name=name,
        tasks=prepared.tasks,
        validation=prepared.validation_ids(),
        pools=pools(prepared, task_specs(config.tasks), beside=beside(studies, config.study)),
        bank=electorate_of(studies, members=chosen.members),
        rule=rule_of(chosen),
        labelling=Labelling(**chosen.pseudo_labels.model_dump()),
        out=target,
    )
    show_pseudo_labels(report, target)
    if not report.files:
        raise typer.Exit(1)


def show_pseudo_labels(report: PseudoLabelReport, target: Path) -> None:
    """Coverage and expected precision by class, what is to be said of them, and the files."""
    from rich.table import Table

    from tutti.cli.progress import number
    from tutti.outputs.pseudo_report import which_rows

    console.print(f"Study {report.study}, recipe {report.recipe}. {which_rows(report.labelling)}", soft_wrap=True)
    table = Table()
    for column in ("task", "label"):
        table.add_column(column)
    for column in ("rows", "share", "mean confidence", "expected precision"):
        table.add_column(column, justify="right")
    for task in report.tasks:
        for one in task.coverage:
            table.add_row(task.task, *one.cells)
        share = task.labelled / max(task.unlabelled, 1)
        expected = number(task.expected_precision) + f" of {task.told:,} labels" * (0 < task.told < task.labelled)
        means = (number(task.mean_confidence), expected)
        table.add_row(task.task, "all", f"{task.labelled:,}", f"{share:.1%}", *means, style="bold")
    console.print(table)
    for remark in report.remarks:
        console.print(remark, soft_wrap=True)
    for file in report.files:
        console.print(f"wrote {target / file}", soft_wrap=True)
