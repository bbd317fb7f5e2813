"""``tutti ensemble`` and ``tutti pseudo-label``: ensembles of the best checkpoints, and labels made by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutti.cli import stores
from tutti.cli.browse import Study
from tutti.cli.console import console, table_of_numbers
from tutti.cli.electorate import VotingStudy, With, electorate_of, pools_of, voting_studies
from tutti.cli.grading import Score, answers
from tutti.cli.paths import local
from tutti.cli.waiting import waiting
from tutti.config.load import load_recipe
from tutti.config.study import StudyConfig
from tutti.errors import Fault, SubmissionError, counted
from tutti.files import sha256_of
from tutti.tasks.build import ids_by, submission_of, task_spec

if TYPE_CHECKING:
    from tutti.config.recipe import Recipe
    from tutti.data.prepared import Prepared
    from tutti.outputs.election.card import Card
    from tutti.outputs.election.members import Rule
    from tutti.outputs.pseudo.report import PseudoLabelReport
    from tutti.outputs.submission.submission import Formats, TestIds

RecipeName = Annotated[
    str | None, typer.Option("--recipe", metavar="NAME|FILE", help="A recipe; by default the study's own.")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where to write; by default in the study.", callback=local)
]


def ensemble(
    study: Study, recipe: RecipeName = None, others: With = None, out: Out = None, score: Score = None
) -> None:
    """Lets the best checkpoints vote: submission files and a card. Needs no GPU and no weights.

    The ensemble and the best trial are scored on rows that had no part in choosing them, with 95 % intervals.

    Example: `tutti ensemble glue_trio --recipe auto --out submission`
    """
    with waiting("Choosing the ensemble's members and scoring it"):
        from tutti.outputs.election.ensemble import write_ensemble

        config, folder, prepared = stores.open_folder(study)
        name, chosen = load_recipe(config.ensemble.recipe if recipe is None else recipe)
        if changed := tuple(_changed_test_files(config, prepared)):
            raise SubmissionError(*changed)
        studies = voting_studies(config, folder, prepared, members=chosen.members, others=others or ())
        target = out or folder.ensembles / name
        card = write_ensemble(
            study=config.study,
            recipe_name=name,
            tasks=prepared.tasks,
            validation=prepared.validation_rows(),
            test_ids=test_ids(config, prepared),
            bank=electorate_of(studies, members=chosen.members),
            rule=rule_of(chosen),
            submission=formats_of(config, prepared, chosen),
            out=target,
            answers=answers(config, prepared, score or ()),
            folded=config.split.folds is not None,
        )
    _show_card(card)
    for file in (*card.files, "card.json", "card.md"):
        console.print(f"wrote {target / file}")


def _show_card(card: Card) -> None:
    """Prints the scores of every trial and of the ensemble, and the card's remarks."""
    from tutti.outputs.formatting import estimate_text, number, signed

    console.print(f"Study {card.study}, recipe {card.recipe}: scores on the validation rows; below, nested estimates")
    table = table_of_numbers("", numbers=(*(task.task for task in card.tasks), "score"))
    for single in card.singles:
        scores = (number(single.task_scores.get(task.task)) for task in card.tasks)
        table.add_row(single.key, *scores, number(single.objective))
    if any(task.score for task in card.tasks):
        table.add_section()
        for label, style, name, show in (
            ("best trial", "", "single", estimate_text),
            ("ensemble", "bold green", "score", estimate_text),
            ("gain", "", "gain", signed),
        ):
            mean = card.objective if name == "score" else getattr(card, name)
            table.add_row(label, *(show(getattr(task, name)) for task in card.tasks), show(mean), style=style)
    console.print(table)
    for graded in card.graded:
        console.print(
            f"On {counted(graded.rows, 'labelled row')} of {graded.task}, {graded.part}: {graded.metric} "
            f"{number(graded.score)}, the best trial alone {number(graded.single)}"
        )
    for remark in card.remarks:
        console.print(remark)


def rule_of(recipe: Recipe) -> Rule:
    """The rule by which a recipe's ensemble is chosen and combined."""
    from tutti.outputs.election.members import Rule

    return Rule(
        **recipe.members.model_dump(exclude={"studies"}),
        method=recipe.method,
        decision=recipe.decision,
        calibration=recipe.calibration,
    )


def test_ids(config: StudyConfig, prepared: Prepared) -> TestIds:
    """By task and test part: the ids of the test file, in its order."""
    return {
        task.name: {part: prepared.ids(task.name, part) for part in config.tasks[task.name].test_sets()}
        for task in prepared.tasks
    }


def formats_of(config: StudyConfig, prepared: Prepared, recipe: Recipe) -> Formats:
    """The formats of a recipe's submission files. Its templates go before the samples that the study's tasks name.

    Raises:
        SubmissionError: if a template's ids are a column of its test table that are not the study's ids.
    """
    from tutti.outputs.submission.submission import Formats

    tested = {name: task for name, task in config.tasks.items() if task.test_sets()}
    samples = {name: task.sample for name, task in tested.items() if task.sample}
    templates = {**samples, **recipe.submission.templates}
    if faults := tuple(_other_ids(config, prepared, templates)):
        raise SubmissionError(*faults)
    formats = {name: recipe.submission.format or submission_of(task) for name, task in tested.items()}
    kinds = {name: task.glue or name for name, task in tested.items() if formats[name] == "glue"}
    separators = {name: task.columns.separator for name, task in tested.items() if task.columns.separator}
    return Formats(recipe.submission.format, templates, kinds, separators)


def _other_ids(config: StudyConfig, prepared: Prepared, templates: Mapping[str, Path]) -> Iterator[Fault]:
    """A fault for each template that counts rows by a column which the study did not take the test table's ids from.

    Row numbers, or another column's values, may be the same ids in another order, which nothing else could tell.
    """
    from tutti.outputs.submission.formats.csv import Csv
    from tutti.outputs.submission.submission import named

    for name, task in config.tasks.items():
        for part, file in task.test_sets().items():
            if not (template := templates.get(named(name, part)) or templates.get(name)):
                continue
            form = Csv.by_template(template)
            theirs, ours = ids_by(form.header[0], task_spec(name, task), file), prepared.ids(name, part).tolist()
            # Ids that the study file names are right if they are the template's: another column may bear its name.
            named_well = task.columns.id and set(form.order or ()) == set(ours) != set(theirs or ())
            if theirs not in (None, ours) and not named_well:
                rule = f"name the column that the study has taken the ids of {file} from"
                remedy = f"set `columns: {{id: {form.header[0]}}}` for the task {name}, and tune it as a new study"
                yield Fault(str(template), rule, f"{form.header[0]!r}, another one", remedy)


def _changed_test_files(config: StudyConfig, prepared: Prepared) -> Iterator[Fault]:
    """A fault for each test file whose content differs from what the study read. A missing file may have been moved."""
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

    Example: `tutti pseudo-label tnews_round --recipe examples/recipes/tnews_round.yaml`
    """
    config, folder, prepared = stores.open_folder(study)
    name, chosen = load_recipe(config.ensemble.recipe if recipe is None else recipe)
    studies = voting_studies(config, folder, prepared, members=chosen.members, others=others or ())
    target = out or folder.pseudo_labels / name
    report = make_pseudo_labels(studies, rows_of=config.study, recipe=chosen, recipe_name=name, out=target)
    if not report.files:
        raise typer.Exit(1)


def make_pseudo_labels(
    studies: Mapping[str, VotingStudy], *, rows_of: str, recipe: Recipe, recipe_name: str, out: Path
) -> PseudoLabelReport:
    """Writes and shows labels that the trials of ``studies`` give to the unlabelled rows of one of them.

    Args:
        studies: by name; the report bears the name of the first.
        rows_of: the name of the one whose rows are labelled and whose training rows get no label again.
    """
    with waiting("Choosing the ensemble's members and the rows to label"):
        from tutti.ensembling.pseudo import Labelling
        from tutti.outputs.pseudo.labels import write_pseudo_labels

        prepared = studies[rows_of].prepared
        report = write_pseudo_labels(
            study=next(iter(studies)),
            recipe_name=recipe_name,
            tasks=prepared.tasks,
            validation=prepared.validation_rows(),
            pools=pools_of(studies, rows_of),
            bank=electorate_of(studies, members=recipe.members),
            rule=rule_of(recipe),
            labelling=Labelling(**recipe.pseudo_labels.model_dump()),
            out=out,
            folded=studies[rows_of].config.split.folds is not None,
        )
    _show_pseudo_labels(report, out)
    return report


def _show_pseudo_labels(report: PseudoLabelReport, target: Path) -> None:
    """Prints coverage and expected precision by class, the remarks, and the files."""
    from tutti.outputs.formatting import number
    from tutti.outputs.pseudo.pool import ledger_of
    from tutti.outputs.pseudo.report import EXPECTED

    console.print(f"Study {report.study}, recipe {report.recipe}. {report.which_rows}")
    judged = any(task.coverage for task in report.tasks)  # no regression's labels are
    caption = f"Share is that of the task's unlabelled rows. {EXPECTED if judged else ''}".rstrip()
    columns = ("rows", "share", "mean confidence", "expected precision")
    table = table_of_numbers("task", "label", numbers=columns, caption=caption)
    for task in report.tasks:
        for class_coverage in task.coverage:
            table.add_row(task.task, *class_coverage.cells)
        share = task.labelled / max(task.unlabelled, 1)
        expected = number(task.expected_precision)
        if 0 < task.judged_labels < task.given:
            expected += f" of {task.judged_labels:,} labels"
        means = (number(task.mean_confidence), expected)
        table.add_row(task.task, "all", f"{task.labelled:,}", f"{share:.1%}", *means, style="bold")
    console.print(table)
    for remark in report.remarks:
        console.print(remark)
    for task in report.tasks:
        for file in (task.file, ledger_of(task.task)) if task.file else ():
            console.print(f"wrote {target / file}")
