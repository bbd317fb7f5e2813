"""The report of a study: one HTML page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pandas import DataFrame

from tutti.bank.electorate import Checkpoints
from tutti.config.recipe import PseudoLabels
from tutti.config.study import Objective
from tutti.data.clean import row_texts
from tutti.errors import counted
from tutti.files import hashes, write_whole
from tutti.outputs.election.card import Card, TaskCard
from tutti.outputs.election.ensemble import card_of
from tutti.outputs.election.members import Elected, elect
from tutti.outputs.election.poll import Poll, Rule
from tutti.outputs.folder import output_folder
from tutti.outputs.formatting import duration, estimate_text, number, short, short_names, signed
from tutti.outputs.pseudo.labels import can_label, coverage_of
from tutti.outputs.pseudo.pool import PART, Pool
from tutti.outputs.pseudo.report import TaskPseudoLabels, which_rows
from tutti.outputs.report.rows import ClassScores, Opinion, Opinions, class_scores
from tutti.outputs.report.search_plots import FEW, importance_bars, search_plots
from tutti.outputs.report.vote_plots import (
    Matrix,
    decisions_plot,
    forest,
    matrix,
    members_plot,
    precision_plot,
    reliability,
)
from tutti.records import TrialRecord, TrialState, best_trial, varied_parameters

if TYPE_CHECKING:
    from tutti.tasks.task import Task

PAGE = "report.html"
LISTING = "report.json"
_FILES = Path(__file__).parent
_WRONG = 1500  # rows shown in all tasks together
_DISPUTED = 30  # further ones, of each task
_NAME = 18  # characters of a class's name beside the matrix


@dataclass(frozen=True)
class TaskSection:
    """One task's part of the page.

    Attributes:
        card: its scores are not shown if there are too few validation rows; all below is then empty.
        plots: SVG texts by name.
        matrix: the confusion matrix of a task of classes.
        classes: of the vote and of the best trial, of kinds that have classes, labels or types.
        pseudo: the pseudo-labels that the recipe would give; none without unlabelled rows and for a regression.
        opinions: rows that the vote has wrong, the surest first, then those that members dispute most.
        wrong: the number of rows that it has wrong.
    """

    card: TaskCard
    plots: Mapping[str, str]
    matrix: Matrix | None
    classes: tuple[tuple[ClassScores, ClassScores], ...]
    pseudo: TaskPseudoLabels | None
    opinions: tuple[Opinion, ...]
    wrong: int

    @property
    def listed_wrong(self) -> int:
        """How many of these rows are listed."""
        return sum(each.wrong for each in self.opinions)


@dataclass(frozen=True)
class VoteSection:
    """The ensemble's part of the page.

    Attributes:
        which: a sentence that says which rows the recipe gives pseudo-labels.
        plots: SVG texts by name.
        errors: every row that the vote has wrong: task, id, text, label, vote, the label's share, the loss, an empty
            column for a new label, and what each member says.
    """

    card: Card
    which: str
    tasks: tuple[TaskSection, ...]
    plots: Mapping[str, str]
    errors: DataFrame


@dataclass(frozen=True)
class Search:
    """The search's part of the page.

    Attributes:
        objectives: of the study; the plots show the first.
        importances: of parameters, by ``tutti.search.importances``.
        evals_per_epoch, folds: of each trial.
        links: pages of trials, by key.
        links_need: the command that serves them; none where they are always there.
    """

    trials: Sequence[TrialRecord]
    objectives: Sequence[Objective] = ("score",)
    importances: Mapping[str, float] = field(default_factory=dict)
    evals_per_epoch: int = 1
    folds: int | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    links_need: str | None = None


def vote(poll: Poll, *, labelling: PseudoLabels, pools: Mapping[str, Pool]) -> VoteSection:
    """Elects the ensembles and collects what the page shows of them.

    Args:
        labelling: the recipe's settings for pseudo-labels.
        pools: by task with unlabelled rows.

    Raises:
        StudyError, StorageError: as ``tutti.outputs.election.members.elect`` does.
    """
    election = elect(poll)
    card = card_of(poll, election, rows={})
    sections, errors = [], []
    for task, own_card in zip(poll.tasks, card.tasks, strict=True):
        elected = election.tasks[task.name]
        pseudo = _pseudo(poll.bank, task, elected, pools.get(task.name), labelling, poll.rule)
        if own_card.score is None:
            sections.append(TaskSection(own_card, {}, None, (), pseudo, (), 0))
            continue
        rows = poll.validation[task.name]
        texts = [" ‖ ".join(each) for each in row_texts(rows)]
        said = Opinions(task.as_voted, elected, ids=rows["id"].tolist(), texts=texts)
        listed, wrong = said.wrong[: _WRONG // len(poll.tasks)], set(said.wrong)
        disputed = [row for row in said.disputed[:_DISPUTED] if row not in wrong]
        sections.append(
            TaskSection(
                card=own_card,
                plots=_task_plots(task, own_card, elected, pseudo, rows["id"].tolist()),
                matrix=_matrix(task, elected),
                classes=_classes(task, elected) if own_card.calibration else (),
                pseudo=pseudo,
                opinions=tuple(map(said.of, (*listed, *disputed))),
                wrong=len(wrong),
            )
        )
        errors += [{"task": task.name, **_error(said.of(row))} for row in said.wrong]
    exclusive = {section.pseudo.exclusive for section in sections if section.pseudo}
    plots = {"forest": svg} if (svg := forest(card)) else {}
    which = which_rows(labelling, exclusive=exclusive)
    return VoteSection(card, which, tuple(sections), plots, DataFrame(errors))


def write_report(
    *,
    study: str,
    tasks: Sequence[Task],
    search: Search,
    vote: VoteSection | None,
    out: Path,
    refresh: int | None = None,
) -> tuple[Path, ...]:
    """Writes ``report.html``, and ``report.json`` with its hash.

    The page embeds its plots, style and script, and loads nothing. It says so where there is nothing to show.

    Args:
        vote: none if no trial has finished yet.
        out: a new or empty folder, or the folder of an earlier report. It is replaced as a whole.
        refresh: seconds after which the page loads itself again; none for a study that has ended.

    Returns:
        The files, the page first.

    Raises:
        StudyError: if ``out`` holds other files.
        StorageError: if ``out`` cannot be written.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    page = _page(study=study, created=created, tasks=tasks, search=search, vote=vote, refresh=refresh)
    with output_folder(out, listing=LISTING) as folder:
        write_whole(folder / PAGE, page)
        recipe = vote.card.recipe if vote else None
        listing = {"study": study, "created": created, "recipe": recipe, "files": hashes(folder)}
        write_whole(folder / LISTING, json.dumps(listing, ensure_ascii=False, indent=2) + "\n")
    return out / PAGE, out / LISTING


def _page(
    *, study: str, created: str, tasks: Sequence[Task], search: Search, vote: VoteSection | None, refresh: int | None
) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "score": number,
        "percent": lambda value: "–" if value is None else f"{100 * value:.1f} %",
        "count": lambda value: "–" if value is None else f"{value:,}",
        "duration": duration,
        "short": short,
        "estimate": estimate_text,
        "signed": signed,
        "svg": Markup,
        "cut": lambda name: name if len(name) <= _NAME else f"{name[: _NAME - 1]}…",
    }
    trials = search.trials
    plots = search_plots(
        trials, objectives=search.objectives, evals_per_epoch=search.evals_per_epoch, folds=search.folds
    )
    if search.importances:
        plots["importances"] = importance_bars(search.importances)
    varied = varied_parameters(trials)
    style, script, template = ((_FILES / f"report.{name}").read_text("utf-8") for name in ("css", "js", "html.jinja"))
    return environment.from_string(template).render(
        study=study,
        created=created,
        tasks=tasks,
        sets=sorted({name for trial in trials for name in trial.set_scores}),
        trials=sorted(trials, key=lambda trial: -np.inf if trial.score is None else trial.score, reverse=True),
        states=_states(trials),
        state_names=[(str(state), False) for state in TrialState if any(trial.state is state for trial in trials)],
        finished=sum(trial.state is TrialState.FINISHED for trial in trials),
        few=FEW,
        varied=[*zip(varied, short_names(varied), strict=True)],
        same={name: value for trial in trials for name, value in trial.parameters.items() if name not in varied},
        notes=any(trial.reason or trial.exchanges for trial in trials),
        objective=search.objectives[0],
        folds=search.folds,
        links=search.links,
        links_need=search.links_need,
        best=best_trial(trials),
        seconds=sum(trial.seconds or 0.0 for trial in trials),
        vote=vote,
        plots=plots,
        refresh=refresh,
        style=Markup(style),
        script=Markup(script),
    )


def _task_plots(
    task: Task, card: TaskCard, elected: Elected, pseudo: TaskPseudoLabels | None, ids: Sequence[str]
) -> dict[str, str]:
    voters = sum(member.weight != 0 for member in card.members)
    plots = {
        "members": members_plot(elected.by_members, recipe=card.score, voters=voters),
        "reliability": reliability(card.calibration) if card.calibration else None,
        "decisions": decisions_plot(task, elected, ids),
        "precision": precision_plot(pseudo) if pseudo else None,
    }
    return {name: svg for name, svg in plots.items() if svg}


def _matrix(task: Task, elected: Elected) -> Matrix | None:
    if task.kind.picture not in ("confusion_matrix", "confusions_of_units"):
        return None
    labels, decided = elected.ballot.labels, elected.held_out.decisions[0]
    return matrix(task.names, labels[labels >= 0], decided[labels >= 0])


def _classes(task: Task, elected: Elected) -> tuple[tuple[ClassScores, ClassScores], ...]:
    both = (
        class_scores(task, elected.ballot.labels, each.decisions[0]) for each in (elected.held_out, elected.alone[0])
    )
    return tuple(zip(*both, strict=True))


def _error(said: Opinion) -> dict[str, object]:
    row: dict[str, object] = {"id": said.id, "text": said.text, "label": said.label, "vote": said.predicted}
    return {**row, "label_share": said.given, "loss": said.loss, "new_label": "", **said.by_member}


def _states(trials: Sequence[TrialRecord]) -> str:
    counts = {state: sum(trial.state is state for trial in trials) for state in TrialState}
    return f"{counted(len(trials), 'trial')}: " + ", ".join(
        f"{count} {state}" for state, count in counts.items() if count
    )


def _pseudo(
    bank: Checkpoints, task: Task, elected: Elected, pool: Pool | None, labelling: PseudoLabels, rule: Rule
) -> TaskPseudoLabels | None:
    """What would be labelled; none unless every member has predicted the unlabelled rows."""
    predicted = (PART in bank.parts(member.key).get(task.name, ()) for member in elected.members)
    calibrated = rule.calibration == "temperature"
    if (
        pool is None
        or not task.kind.probabilistic
        or not all(predicted)
        or not can_label(elected, labelling, calibrated=calibrated)
    ):
        return None
    return coverage_of(bank, task, elected, pool, labelling=labelling, calibrated=calibrated)
