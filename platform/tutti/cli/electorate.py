"""Who could vote, as a recipe and ``--with`` say: the trials of one study or of several, all or those of a filter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from tutti.bank.bank import Bank
from tutti.bank.electorate import Electorate
from tutti.cli import stores
from tutti.config.folder import StudyFolder, find_study
from tutti.config.load import parse_study
from tutti.config.recipe import Members
from tutti.config.study import StudyConfig
from tutti.data.prepare import Prepared, load_prepared
from tutti.errors import Fault, StudyError, counted

With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="STUDY", help="Another study whose trials may vote too. May be given again."),
]


@dataclass(frozen=True)
class Kept:
    """A study whose trials may vote."""

    config: StudyConfig
    folder: StudyFolder
    prepared: Prepared


def electorate(
    config: StudyConfig, folder: StudyFolder, prepared: Prepared, *, members: Members, others: Sequence[str] = ()
) -> Electorate:
    """The checkpoints of the study, and of those that the recipe and ``others`` name, that may vote.

    Raises:
        StudyError: as ``voting_studies`` does, or where the recipe's filter is none or finds no trial.
        TrackingError: where there is a filter and the tracking store of a study cannot be read.
    """
    return electorate_of(voting_studies(config, folder, prepared, members=members, others=others), members=members)


def voting_studies(
    config: StudyConfig, folder: StudyFolder, prepared: Prepared, *, members: Members, others: Sequence[str] = ()
) -> dict[str, Kept]:
    """The study, first, and those that the recipe and ``others`` name, by their names.

    Raises:
        StudyError: where another study is not there or has other tasks, classes or files, or two have the same name.
    """
    from tutti.outputs.studies import check_together

    studies = {config.study: Kept(config, folder, prepared)}
    for other in (*members.studies, *others):
        place = find_study(other, beside=folder.path.parent)
        kept = Kept(parse_study(place.study_file), place, load_prepared(place.data))
        known = studies.setdefault(kept.config.study, kept)
        if known.folder.path.resolve() != place.path.resolve():
            rule = f"have another name than those it votes with, of which one is {known.folder.path}"
            raise StudyError(Fault(f"the study {place.path}", rule, repr(kept.config.study), "leave one of them out"))
    check_together({name: kept.prepared for name, kept in studies.items()})
    return studies


def beside(studies: Mapping[str, Kept], name: str) -> list[Prepared]:
    """The rows of the studies that vote with the one of that name, which their members may have been trained on."""
    return [kept.prepared for each, kept in studies.items() if each != name]


def electorate_of(
    studies: Mapping[str, Kept], *, members: Members, only: Mapping[str, Collection[str]] | None = None
) -> Electorate:
    """The checkpoints of the studies that may vote; raises as ``electorate`` does.

    Args:
        only: without a filter, keys of those who may vote, by the study's name; of other studies all.
    """
    banks = {name: Bank(kept.folder.bank) for name, kept in studies.items()}
    if members.filter is None:
        return Electorate(banks, only=only)
    stores.quiet_mlflow()
    from tutti.tracking.found import check_filter, trials_found

    what = "the recipe's members.filter"
    check_filter(members.filter, what=what)
    matching = {
        name: trials_found(
            stores.tracking_uri(kept.config, kept.folder),
            experiment=name,
            wanted=members.filter,
            what=what,
            owner=kept.folder.owner,
        )
        if stores.is_tracked(kept.config, kept.folder)
        else set()
        for name, kept in studies.items()
    }
    found = Electorate(banks, only=matching)
    if not found.records() and (every := Electorate(banks).records()):
        got = f"none of {counted(len(every), 'trial')} with predictions in {', '.join(studies)}"
        remedy = "tag trials in MLflow, or correct the filter"
        raise StudyError(Fault(f"{what} {members.filter!r}", "find a finished trial", got, remedy))
    return found
