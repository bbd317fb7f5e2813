"""``tutti soup``: averages the weights of an ensemble's members into one model."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutti.cli import stores
from tutti.cli.browse import Study
from tutti.cli.console import console, table_of_numbers
from tutti.cli.electorate import VotingStudy, electorate_of, voting_studies
from tutti.cli.predict import connected_slots
from tutti.cli.vote import rule_of
from tutti.config.load import load_recipe
from tutti.errors import Fault, StudyError

if TYPE_CHECKING:
    from tutti.config.recipe import Recipe
    from tutti.outputs.election.members import Election
    from tutti.outputs.election.soup_card import SoupCard


def soup(
    study: Study,
    recipe: Annotated[str, typer.Option("--recipe", metavar="NAME|FILE", help="Who goes in.")] = "soup",
) -> None:
    """Averages the weights of an ensemble's members into one model, where that is as good as their vote.

    One trial after the other goes in as long as the score on the validation rows does not fall (arXiv 2203.05482). The
    model is a checkpoint that `tutti predict --checkpoint` takes, and its encoder one for `from_pretrained`. Exit code
    1 where the soup falls short of the vote: then there is a card alone, or the soup of an earlier run.

    Example: `tutti soup glue_trio`
    """
    from tutti.outputs.election.members import elect
    from tutti.outputs.folder import PAGE, output_folder, write_card

    config, folder, prepared = stores.open_folder(study)
    name, chosen = load_recipe(recipe)
    if config.split.folds:
        rule, got = "have models that left the same rows out", f"split.folds: {config.split.folds}"
        raise StudyError(Fault(f"the study {config.study}", rule, got, "make a soup of a study without folds"))
    if chosen.members.studies:
        got, remedy = f"also {', '.join(chosen.members.studies)}", "take members.studies out of the recipe"
        raise StudyError(Fault(f"the recipe {name}", "let one study's trials into a soup", got, remedy))
    studies = voting_studies(config, folder, prepared, members=chosen.members)
    election = elect(
        study=config.study,
        bank=electorate_of(studies, members=chosen.members),
        tasks=prepared.tasks,
        validation=prepared.validation_rows(),
        needed={},
        rule=rule_of(chosen),
    )
    target = folder.soups / name
    with output_folder(target, kind="soup") as place:
        card = _make_soup(studies[config.study], election, name, chosen, into=place / "checkpoint")
        _show(card)
        if not card.kept and (target / "checkpoint").exists():  # it may be in use
            console.print(f"{target} keeps the soup of an earlier run.")
            raise typer.Exit(1)
        if not card.kept:
            shutil.rmtree(place / "checkpoint")
        card = write_card(place, card)
    console.print(f"wrote {target / ('checkpoint' if card.kept else PAGE)}")
    if not card.kept:
        raise typer.Exit(1)


def _show(card: SoupCard) -> None:
    from tutti.outputs.formatting import number

    table = table_of_numbers("trial", numbers=("alone", "the soup with it", "in the soup"))
    for trial in card.tried:
        table.add_row(trial.key, number(trial.alone), number(trial.score), "yes" if trial.kept else "no")
    console.print(table)
    if card.passed_over:
        console.print(f"Skipped, since their shape differs from the best's: {', '.join(card.passed_over)}")
    console.print(card.verdict)


def _make_soup(study: VotingStudy, election: Election, name: str, recipe: Recipe, *, into: Path) -> SoupCard:
    """Makes the soup from all trials that vote in any task, best objective first, and compares it with the vote."""
    from tutti.orchestration.after.soup import averageable, compute_soup
    from tutti.orchestration.after.weights import weights_of
    from tutti.outputs.election.soup_card import SoupCard, Tried, refolded, versus

    config, folder, tasks = study.config, study.folder, study.prepared.tasks
    voting = {member.key for elected in election.tasks.values() for member in elected.members}
    ranked = [record for record in election.checkpoints if record.key in voting]
    folders = weights_of(folder, [record.key for record in ranked], folds=None, tasks=tasks)
    weights = {key: places[0] for key, places in folders.items()}
    mixed = averageable(weights)
    folds = refolded(election, by=recipe.members.by)
    others = sorted({key for fold in folds or () for key in fold.voters} - voting)
    try:
        more = weights_of(folder, others, folds=None, tasks=tasks)
        weights |= {key: places[0] for key, places in more.items()}
    except StudyError as error:
        # The weights that are left belong to trials chosen on all rows, so there is no nested estimate.
        missing = " and ".join(fault.what for fault in error.faults)
        console.print(f"Without weights of {missing}, soup and vote are compared on the rows that chose.")
        folds = None
    with connected_slots(config.resources, most=1) as slot:
        stirred = compute_soup(
            folder,
            list(mixed),
            weights=weights,
            folds=folds,
            into=into,
            training=config.training,
            slot=slot,
        )
    alone = {record.key: record.score for record in ranked}
    ingredients = stirred.ingredients
    best = [each for each in ingredients if each.kept][-1]
    return SoupCard(
        study=config.study,
        recipe=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tried=tuple(Tried(each.key, alone[each.key], each.score, each.kept) for each in ingredients),
        passed_over=tuple(key for key in folders if key not in mixed),
        task_scores=best.task_scores,
        vote_scores={name: elected.score for name, elected in election.tasks.items()},
        estimates=None if stirred.held_out is None else versus(election, stirred.held_out),
        within=recipe.soup.within,
        files={},
        overlap=election.overlap,
        weights=election.weights,
    )
