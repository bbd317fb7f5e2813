"""The trials that may vote, as the recipe and ``--with`` select them: of one or several studies, filtered or all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tutti.bank.bank import Bank
from tutti.bank.electorate import Electorate
from tutti.cli import stores
from tutti.config.folder import StudyFolder, find_study
from tutti.config.load import parse_study
from tutti.config.recipe import Members
from tutti.config.study import StudyConfig
from tutti.data.prepared import Prepared, load_prepared
from tutti.errors import Fault, StudyError, counted

if TYPE_CHECKING:
    from tutti.outputs.pseudo.pool import Pool

With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="STUDY", help="Another study whose trials may vote too. May be given again."),
]


@dataclass(frozen=True)
class VotingStudy:
    """A study whose trials may vote."""

    config: StudyConfig
    folder: StudyFolder
    prepared: Prepared


def voting_studies(
    config: StudyConfig, folder: StudyFolder, prepared: Prepared, *, members: Members, others: Sequence[str] = ()
) -> dict[str, VotingStudy]:
    """By name: the study itself, first, and the studies that the recipe and ``others`` name.

    Raises:
        StudyError: if a study is missing, has other classes or files, shares its name with another, or has other tasks
            unless members are chosen by task: then it votes in those that both have, of which there must be one.
    """
    from tutti.outputs.election.studies import check_together

    studies = {config.study: VotingStudy(config, folder, prepared)}
    for name_or_folder in (*members.studies, *others):
        place = find_study(name_or_folder, beside=folder.path.parent)
        other = VotingStudy(parse_study(place.study_file), place, load_prepared(place.data))
        namesake = studies.setdefault(other.config.study, other)
        if namesake.folder.path.resolve() != place.path.resolve():
            rule = f"have another name than those it votes with, of which one is {namesake.folder.path}"
            raise StudyError(Fault(f"the study {place.path}", rule, repr(other.config.study), "leave one of them out"))
    check_together({name: study.prepared for name, study in studies.items()}, by_task=members.by == "task")
    return studies


def pools_of(studies: Mapping[str, VotingStudy], name: str) -> dict[str, Pool]:
    """The named study's unlabelled rows by task. Those that the others' trials have seen with a label count as seen."""
    from tutti.outputs.pseudo.pool import pools
    from tutti.tasks.build import task_specs

    others = [study.prepared for other, study in studies.items() if other != name]
    return pools(studies[name].prepared, task_specs(studies[name].config.tasks), others=others)


def electorate_of(
    studies: Mapping[str, VotingStudy], *, members: Members, only: Mapping[str, Collection[str]] | None = None
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
    banks = {name: Bank(study.folder.bank) for name, study in studies.items()}
    for name in [*banks][1:]:
        if not banks[name].records():
            remedy = "wait until one has finished, or leave the study out"
            raise StudyError(Fault(f"the study {name}", "have a finished trial to vote with", "none", remedy))
    if members.filter is None:
        return Electorate(banks, only=only)
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
    filtered = Electorate(banks, only=matching)
    if not filtered.records() and (every := Electorate(banks).records()):
        got = f"none of {counted(len(every), 'trial')} with predictions in {', '.join(studies)}"
        remedy = "tag trials in MLflow, or correct the filter"
        raise StudyError(Fault(f"{what} {members.filter!r}", "find a finished trial", got, remedy))
    return filtered
