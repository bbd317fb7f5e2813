"""The report of a study: one HTML page that needs no network, with its pictures also as PNG files."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.config.recipe import PseudoLabels
from tutti.data.clean import row_texts
from tutti.errors import counted
from tutti.files import hashes, write_whole
from tutti.outputs.election.card import Card, TaskCard
from tutti.outputs.election.ensemble import card_of
from tutti.outputs.election.members import Elected, Rule, elect
from tutti.outputs.folder import output_folder
from tutti.outputs.formatting import duration, estimate_text, number, short, signed
from tutti.outputs.pictures import COST_STATES, cost_png, drawn, ensemble_png, predictions_png, reliability_png
from tutti.outputs.pseudo.labels import can_label, coverage_of
from tutti.outputs.pseudo.pool import PART, Pool
from tutti.outputs.pseudo.report import TaskPseudoLabels, which_rows
from tutti.outputs.report.rows import ClassScores, Disputed, class_scores, disputed
from tutti.records import TrialRecord, TrialState, best_trial

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.tasks.task import Task

PAGE = "report.html"
LISTING = "report.json"
_TEMPLATE = Path(__file__).with_name("report.html.jinja")
_ROWS = 10  # disputed rows shown by task


@dataclass(frozen=True)
class TaskSection:
    """One task's part of the page.

    Attributes:
        card: its scores are not shown if there are too few validation rows.
        picture: the name of the confusion matrix or scatter plot; none if there are too few validation rows.
        classes: empty for a regression.
        pseudo: the pseudo-labels that the recipe would give; none without unlabelled rows and for a regression.
    """

    card: TaskCard
    picture: str | None
    classes: tuple[ClassScores, ...]
    pseudo: TaskPseudoLabels | None
    disputed: tuple[Disputed, ...]


@dataclass(frozen=True)
class VoteSection:
    """The ensemble's part of the page.

    Attributes:
        which: a sentence that says which rows the recipe gives pseudo-labels.
        pictures: PNG bytes by name.
    """

    card: Card
    which: str
    tasks: tuple[TaskSection, ...]
    pictures: Mapping[str, bytes]


def vote(
    *,
    study: str,
    recipe_name: str,
    tasks: Sequence[Task],
    bank: Checkpoints,
    rule: Rule,
    labelling: PseudoLabels,
    pools: Mapping[str, Pool],
    validation: Mapping[str, DataFrame],
    folded: bool = False,
) -> VoteSection:
    """Elects the ensembles and collects what the page shows of them.

    Args:
        labelling: the recipe's settings for pseudo-labels.
        pools: by task with unlabelled rows.
        validation: by task, its validation rows in order: ``id``, ``text``, and ``text_b`` for pairs.
        folded: whether the study has folds.

    Raises:
        StudyError, StorageError: as ``tutti.outputs.election.members.elect`` does.
    """
    election = elect(study=study, bank=bank, tasks=tasks, validation=validation, needed={}, rule=rule)
    card = card_of(study=study, recipe_name=recipe_name, tasks=tasks, election=election, rows={}, folded=folded)
    pictures = {"ensemble": partial(ensemble_png, card)}
    calibrations = {task.task: task.calibration for task in card.tasks if task.calibration}
    if calibrations:
        pictures["reliability"] = partial(reliability_png, calibrations)
    sections = []
    for task, own_card in zip(tasks, card.tasks, strict=True):
        elected = election.tasks[task.name]
        name = f"{task.kind.picture}_{task.name}"
        if own_card.score is not None:
            decided, labels = elected.held_out.decisions[0], elected.ballot.labels
            pictures[name] = partial(predictions_png, task.kind, labels, decided, task.names, task.name)
        rows = validation[task.name]
        texts = [" ‖ ".join(each) for each in row_texts(rows)]
        sections.append(
            TaskSection(
                card=own_card,
                picture=name if name in pictures else None,
                classes=class_scores(task, elected) if own_card.calibration else (),
                pseudo=_pseudo(bank, task, elected, pools.get(task.name), labelling, rule),
                disputed=disputed(task, elected, ids=rows["id"].tolist(), texts=texts, most=_ROWS)
                if own_card.score is not None
                else (),
            )
        )
    exclusive = {section.pseudo.exclusive for section in sections if section.pseudo}
    return VoteSection(card, which_rows(labelling, exclusive=exclusive), tuple(sections), drawn(pictures))


def write_report(
    *,
    study: str,
    tasks: Sequence[Task],
    trials: Sequence[TrialRecord],
    objective: str,
    search: Mapping[str, bytes],
    vote: VoteSection | None,
    out: Path,
) -> tuple[Path, ...]:
    """Writes ``report.html``, its pictures as PNG files, and ``report.json`` with their hashes.

    The page embeds its pictures and style and loads nothing. It says so where there is nothing to show.

    Args:
        objective: the objective that the search's pictures show: the study's first.
        search: the search's pictures by name, as ``tutti.search.pictures`` draws them.
        vote: none if no trial has finished yet.
        out: a new or empty folder, or the folder of an earlier report. It is replaced as a whole.

    Returns:
        The files, the page first.

    Raises:
        StudyError: if ``out`` holds other files.
        StorageError: if ``out`` cannot be written.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    pictures = {**search, **(vote.pictures if vote else {})}
    if any(trial.score is not None and trial.seconds and trial.state in COST_STATES for trial in trials):
        pictures |= drawn({"cost": partial(cost_png, trials)})
    page = _page(
        study=study, created=created, tasks=tasks, trials=trials, objective=objective, vote=vote, pictures=pictures
    )
    with output_folder(out, listing=LISTING) as folder:
        for name, png in pictures.items():
            write_whole(folder / f"{name}.png", png)
        write_whole(folder / PAGE, page)
        files = hashes(folder)
        listing = {"study": study, "created": created, "recipe": vote.card.recipe if vote else None, "files": files}
        write_whole(folder / LISTING, json.dumps(listing, ensure_ascii=False, indent=2) + "\n")
    return tuple(out / name for name in (PAGE, *(name for name in files if name != PAGE), LISTING))


def _page(
    *,
    study: str,
    created: str,
    tasks: Sequence[Task],
    trials: Sequence[TrialRecord],
    objective: str,
    vote: VoteSection | None,
    pictures: Mapping[str, bytes],
) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "score": number,
        "percent": lambda value: "–" if value is None else f"{100 * value:.1f} %",
        "count": lambda value: "–" if value is None else f"{value:,}",
        "duration": duration,
        "short": short,
        "estimate": estimate_text,
        "signed": signed,
        "uri": lambda png: f"data:image/png;base64,{base64.b64encode(png).decode()}",
    }
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        study=study,
        created=created,
        tasks=tasks,
        trials=sorted(trials, key=lambda trial: -np.inf if trial.score is None else trial.score, reverse=True),
        states=_states(trials),
        objective=objective,
        best=best_trial(trials),
        seconds=sum(trial.seconds or 0.0 for trial in trials),
        vote=vote,
        pictures=pictures,
    )


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
