"""The trials that may vote, as a recipe and its user select them: of one or several studies, filtered or all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tutti.bank.electorate import Electorate
from tutti.config.load import load_recipe
from tutti.config.recipe import Members, Recipe
from tutti.errors import Fault, StudyError, counted
from tutti.workflows import stores
from tutti.workflows.base import StudyBase, found_study

if TYPE_CHECKING:
    from tutti.outputs.election.members import Election
    from tutti.outputs.election.poll import Poll
    from tutti.outputs.pseudo.pool import Pool


def chosen_recipe(study: StudyBase, recipe: str | None) -> tuple[str, Recipe]:
    """Name and content of a recipe, by default the study's own; raises ConfigError as ``load_recipe`` does."""
    return load_recipe(study.config.ensemble.recipe if recipe is None else str(recipe))


def voting_studies(study: StudyBase, *, members: Members, others: Sequence[str] = ()) -> dict[str, StudyBase]:
    """By name: the study itself, first, and the studies that the recipe and ``others`` name.

    Raises:
        StudyError: if a study is missing, has other classes or files, shares its name with another, or has other tasks
            unless members are chosen by task: then it votes in those that both have, of which there must be one.
    """
    from tutti.outputs.election.studies import check_together

    studies = {study.name: study}
    for name_or_folder in (*members.studies, *others):
        other = found_study(str(name_or_folder), like=study)
        other.prepared  # noqa: B018 - a study without rows is refused first
        namesake = studies.setdefault(other.name, other)
        if namesake.folder.path.resolve() != other.folder.path.resolve():
            rule = f"have another name than those it votes with, of which one is {namesake.folder.path}"
            raise StudyError(Fault(f"the study {other.folder.path}", rule, repr(other.name), "leave one of them out"))
    check_together({name: each.prepared for name, each in studies.items()}, by_task=members.by == "task")
    return studies


def pools_of(studies: Mapping[str, StudyBase], name: str) -> dict[str, Pool]:
    """The named study's unlabelled rows by task. Those that the others' trials have seen with a label count as seen."""
    from tutti.outputs.pseudo.pool import pools
    from tutti.tasks.build import task_specs

    others = [study.prepared for other, study in studies.items() if other != name]
    return pools(studies[name].prepared, task_specs(studies[name].config.tasks), others=others)


def poll_of(
    studies: Mapping[str, StudyBase],
    recipe: Recipe,
    *,
    name: str = "",
    only: Mapping[str, Collection[str]] | None = None,
    say: Callable[[str], object] | None = None,
) -> Poll:
    """What a recipe's election is held of: the studies' checkpoints, and the first study's validation rows.

    Args:
        name: of the recipe.
        only: as of ``electorate_of``; raises as that does.
        say: is told how far estimates are.
    """
    from tutti.outputs.election.estimates import Estimates
    from tutti.outputs.election.poll import Poll, Rule

    study = next(iter(studies.values()))
    return Poll(
        study=study.name,
        tasks=study.prepared.tasks,
        validation=study.prepared.validation_rows(),
        bank=electorate_of(studies, members=recipe.members, only=only),
        rule=Rule.of(recipe),
        recipe_name=name,
        folded=study.config.split.folds is not None,
        estimates=Estimates(study.folder.estimates, say=say),
    )


def election_of(
    studies: Mapping[str, StudyBase],
    recipe: Recipe,
    *,
    wanted: Container[str] | None = None,
    only: Mapping[str, Collection[str]] | None = None,
) -> tuple[Poll, Election]:
    """A recipe's poll, and whom it elects.

    Args:
        wanted: as of ``elect``.
        only: as of ``electorate_of``.
    """
    from tutti.outputs.election.members import elect

    poll = poll_of(studies, recipe, only=only)
    return poll, elect(poll, wanted=wanted)


def without_guests(recipe: Recipe) -> Recipe:
    """The recipe with trials as its only voters."""
    return recipe.model_copy(update={"members": recipe.members.model_copy(update={"guests": False})})


def election_of_trials(
    studies: Mapping[str, StudyBase], recipe: Recipe, *, writers: bool = False, **given: Any
) -> tuple[Poll, Election, Recipe]:
    """As ``election_of``, but guests have no part where they would vote: they have no weights, to predict with or to
    train again. One notice then tells what the vote scores without them.

    Args:
        writers: whether guests may vote whose texts a trial writes, under settings of their own.

    Returns:
        The poll, whom it elects, and the recipe, which has no guests where they have no part.
    """
    guests = set[str]()
    try:
        poll, election = election_of(studies, recipe, **given)
    except StudyError:  # such as a guest that lacks a task, by which all are ranked
        if not recipe.members.guests:
            raise
    else:
        every = [record for record in poll.bank.records() if record.source is not None]
        guests = {record.key for record in every if not (writers and record.writer)}
        guests &= {each.key for one in election.tasks.values() for each in one.members if each.weight}
        if not guests:
            return poll, election, recipe
    poll, election = election_of(studies, recipe := without_guests(recipe), **given)
    scores = ", ".join(f"{name} {each.together[1].estimate}" for name, each in election.tasks.items())
    listed = f"Guests ({', '.join(sorted(guests))})" if guests else "Guests"
    next(iter(studies.values())).console.print(
        f"{listed} have no weights, and no part in what follows: without them the vote scores {scores} on rows that "
        "did not choose it.",
        markup=False,
    )
    return poll, election, recipe


def electorate_of(
    studies: Mapping[str, StudyBase], *, members: Members, only: Mapping[str, Collection[str]] | None = None
) -> Electorate:
    """The checkpoints of the studies that may vote.

    Args:
        only: keys of the trials that may vote, by study name; all trials of a study that it lacks. Ignored if the
            recipe has a filter.

    Raises:
        StudyError: if a study beside the first has no finished trial, or the recipe's filter is invalid or finds no
            trial.
        TrackingError: if there is a filter and a study's tracking store cannot be read.
    """
    banks = {name: study.bank for name, study in studies.items()}
    for name in [*banks][1:]:
        if not banks[name].records():
            remedy = "wait until one has finished, or leave the study out"
            raise StudyError(Fault(f"the study {name}", "have a finished trial to vote with", "none", remedy))
    if members.filter is None:
        return Electorate(banks, only=only, guests=members.guests)
    stores.quiet_mlflow()
    from tutti.tracking.run_filter import check_filter, find_trials

    what = "the recipe's members.filter"
    check_filter(members.filter, what=what)
    matching = {
        name: find_trials(
            stores.tracking_uri(study.config, study.folder),
            experiment=name,
            wanted=members.filter,
            what=what,
            owner=study.folder.owner,
        )
        if stores.is_tracked(study.config, study.folder)
        else set()
        for name, study in studies.items()
    }
    filtered = Electorate(banks, only=matching, guests=members.guests)
    if not filtered.records() and (every := Electorate(banks).records()):
        got = f"none of {counted(len(every), 'trial')} with predictions in {', '.join(studies)}"
        remedy = "tag trials in MLflow, or correct the filter"
        raise StudyError(Fault(f"{what} {members.filter!r}", "find a finished trial", got, remedy))
    return filtered
