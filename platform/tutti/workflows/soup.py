"""Averages the weights of an ensemble's members into one model."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.errors import Fault, StudyError
from tutti.workflows.base import StudyBase
from tutti.workflows.electorate import chosen_recipe, election_of, voting_studies, without_guests
from tutti.workflows.predict import connected_slots

if TYPE_CHECKING:
    from tutti.config.recipe import Recipe
    from tutti.outputs.election.members import Election
    from tutti.outputs.election.soup_card import SoupCard


@dataclass(frozen=True)
class Soup:
    """The result of averaging.

    Attributes:
        card: what was tried, and how the soup compares with the vote: ``card.kept``.
        folder: holds the card, and the checkpoint.
        replaced: false if the soup falls short of the vote, and that of an earlier run stays in the folder.
    """

    card: SoupCard
    folder: Path
    replaced: bool

    @property
    def checkpoint(self) -> Path | None:
        """The model, or the folder of one for each fold; none where it falls short of the vote."""
        return self.folder / "checkpoint" if self.card.kept else None


def soup(study: StudyBase, recipe: str = "soup") -> Soup:
    """Averages the weights of an ensemble's members into one model, where that is as good as their vote.

    One trial after the other goes in as long as the score on the validation rows does not fall (arXiv 2203.05482). The
    model is a checkpoint for ``predict(checkpoint=...)``, and its encoder one for ``from_pretrained``.

    Args:
        recipe: who goes in: the name of a shipped recipe or the path of a file.

    Raises:
        StudyError: if the recipe names other studies, or no weights are left.

    Example:
        >>> study.soup().checkpoint
    """
    from tutti.outputs.folder import output_folder, write_card

    study = study.stored
    name, chosen = chosen_recipe(study, recipe)
    if chosen.members.studies:
        got, remedy = f"also {', '.join(chosen.members.studies)}", "take members.studies out of the recipe"
        raise StudyError(Fault(f"the recipe {name}", "let one study's trials into a soup", got, remedy))
    _, election = election_of(voting_studies(study, members=chosen.members), without_guests(chosen))
    target = study.folder.soups / name
    with suppress(_EarlierSoupStays), output_folder(target, kind="soup") as place:
        card = _make_soup(study, election, name, chosen, into=place / "checkpoint")
        if not card.kept and (target / "checkpoint").exists():  # it may be in use
            raise _EarlierSoupStays
        if not card.kept:
            shutil.rmtree(place / "checkpoint")
        card = write_card(place, card)
        return Soup(card, target, replaced=True)
    return Soup(card, target, replaced=False)


class _EarlierSoupStays(Exception):
    """Leaves the folder as it is."""


def _make_soup(study: StudyBase, election: Election, name: str, recipe: Recipe, *, into: Path) -> SoupCard:
    """Makes the soup from all trials that vote in any task, best objective first, and compares it with the vote."""
    from tutti.orchestration.after.soup import averageable, compute_soup
    from tutti.orchestration.after.weights import weights_of
    from tutti.outputs.election.soup_card import SoupCard, Tried, refolded, versus

    config, folder, tasks = study.config, study.folder, study.prepared.tasks
    voting = {member.key for elected in election.tasks.values() for member in elected.members}
    ranked = [record for record in election.checkpoints if record.key in voting]
    count = config.split.folds
    weights = weights_of(folder, [record.key for record in ranked], folds=count, tasks=tasks)
    mixed, known = averageable(weights), list(weights)
    folds = refolded(election, by=recipe.members.by)
    others = sorted({key for fold in folds or () for key in fold.voters} - voting)
    try:
        weights |= weights_of(folder, others, folds=count, tasks=tasks)
    except StudyError as error:
        # The weights that are left belong to trials chosen on all rows, so there is no nested estimate.
        missing = " and ".join(fault.what for fault in error.faults)
        study.console.print(f"Without weights of {missing}, soup and vote are compared on the rows that chose.")
        folds = None
    with connected_slots(study, most=1) as slot:
        stirred = compute_soup(
            folder, list(mixed), weights=weights, folds=folds, into=into, training=config.training, slot=slot
        )
    alone = {record.key: record.score for record in ranked}
    ingredients = stirred.ingredients
    best = [each for each in ingredients if each.kept][-1]
    return SoupCard(
        study=config.study,
        recipe=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tried=tuple(Tried(each.key, alone[each.key], each.score, each.kept) for each in ingredients),
        passed_over=tuple(key for key in known if key not in mixed),
        task_scores=best.task_scores,
        vote_scores={name: elected.score for name, elected in election.tasks.items()},
        estimates=None if stirred.held_out is None else versus(election, stirred.held_out),
        within=recipe.soup.within,
        files={},
        overlap=election.overlap,
        weights=election.weights,
    )
