"""``tutti ensemble`` and ``tutti pseudo-label``: let the best checkpoints vote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tutti.bank import Bank
from tutti.cli import parts
from tutti.cli.browse import Study
from tutti.cli.parts import console

RecipeName = Annotated[
    str | None, typer.Option("--recipe", metavar="NAME|FILE", help="A recipe; by default the study's own.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to write; by default in the study.")]


def ensemble(study: Study, recipe: RecipeName = None, out: Out = None) -> None:
    """Averages the best checkpoints' probabilities into submission files and a card. Needs no GPU and no weights.

    Example: `tutti ensemble glue-trio --recipe baseline --out submission`
    """
    from rich.table import Table

    from tutti.cli.progress import number
    from tutti.config.load import load_recipe
    from tutti.outputs.ensemble import write_ensemble

    config, folder, prepared = parts.open_folder(study)
    name, chosen = load_recipe(recipe or config.ensemble.recipe)
    target = out or folder.ensembles / name
    card = write_ensemble(
        study=config.study,
        recipe_name=name,
        tasks=prepared.tasks,
        test_ids={
            task.name: {part: prepared.ids(task.name, part) for part in config.tasks[task.name].test_sets()}
            for task in prepared.tasks
        },
        bank=Bank(folder.bank),
        top=chosen.members.top,
        by=chosen.members.by,
        weights=chosen.weights,
        submission=chosen.submission,
        out=target,
    )
    table = Table(title=f"Study {config.study}, recipe {name}: validation scores", title_justify="left")
    table.add_column("")
    for column in (*(task.name for task in prepared.tasks), "score"):
        table.add_column(column, justify="right")
    for row in card.comparison():
        style = "bold green" if row.name == "ensemble" else None
        scores = (row.task_scores.get(task.name) for task in prepared.tasks)
        table.add_row(row.name, *(number(score) for score in scores), number(row.score), style=style)
    console.print(table)
    for file in card.files:
        console.print(f"wrote {target / file}", soft_wrap=True)


def pseudo_label(study: Study, recipe: RecipeName = None, out: Out = None) -> None:
    """Labels the unlabelled rows that the ensemble is sure of: one file per task, in the task's own training layout.

    The next study's `extra_train:` takes each file.

    Example: `tutti pseudo-label chinese-trio --recipe baseline`
    """
    from tutti.config.load import load_recipe
    from tutti.outputs.pseudo_labels import write_pseudo_labels
    from tutti.tasks.build import task_specs

    config, folder, prepared = parts.open_folder(study)
    name, chosen = load_recipe(recipe or config.ensemble.recipe)
    target = out or folder.pseudo_labels / name
    layouts = {spec.name: spec.extra_layout for spec in task_specs(config.tasks)}
    report = write_pseudo_labels(
        study=config.study,
        recipe_name=name,
        tasks=prepared.tasks,
        rows={
            task.name: prepared.rows(task.name, "unlabeled")
            for task in prepared.tasks
            if "unlabeled" in prepared.parts[task.name]
        },
        layouts=layouts,
        bank=Bank(folder.bank),
        top=chosen.members.top,
        by=chosen.members.by,
        weights=chosen.weights,
        threshold=chosen.pseudo_labels.threshold,
        out=target,
    )
    for line in report.lines():
        console.print(line, soft_wrap=True)
    for file in report.files:
        console.print(f"wrote {target / file}", soft_wrap=True)
