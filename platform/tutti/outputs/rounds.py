"""Compares a round of pseudo-labels with its control, and stores the result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.bank.electorate import Checkpoints
from tutti.ensembling.nested import Estimate, Judged, judge
from tutti.errors import Fault, StorageError
from tutti.files import write_whole
from tutti.outputs.members import Rule, elect

if TYPE_CHECKING:
    import numpy as np

    from tutti.tasks.task import Task

FILE = "round.json"


@dataclass(frozen=True)
class Comparison:
    """Nested estimates of three ensembles by task, on validation rows that had no part in choosing members.

    Attributes:
        before: the ensemble of the teachers alone.
        control: the ensemble with the control's trials.
        round: the ensemble with the trials that were trained on pseudo-labels.
        gain: ``round`` minus ``control``, paired on the same rows.
    """

    before: Mapping[str, Estimate]
    control: Mapping[str, Estimate]
    round: Mapping[str, Estimate]
    gain: Mapping[str, Estimate]

    @property
    def objective(self) -> dict[str, Estimate]:
        """The mean over tasks of each of the four."""
        return {name: Estimate.mean([*getattr(self, name).values()]) for name in ("before", "control", "round", "gain")}

    @property
    def kept(self) -> bool:
        """Whether the round scores higher than its control."""
        return self.objective["gain"].score > 0


def compare(
    tasks: Sequence[Task],
    *,
    before: Checkpoints,
    control: Checkpoints,
    with_round: Checkpoints,
    validation: Mapping[str, np.ndarray],
    needed: Mapping[str, Sequence[str]],
    rule: Rule,
) -> Comparison:
    """Estimates each ensemble by nested 5-fold cross-validation: chosen on four fifths of the rows, scored on the last.

    Args:
        before: the teachers' checkpoints.
        control: the same with the control's checkpoints.
        with_round: the same with those of the round.
        validation: by task, the ids of its validation rows, in order.
        needed: by task, the parts that members must have predictions for.

    Raises:
        StudyError, StorageError: as ``elect`` does.
    """

    def judged(bank: Checkpoints) -> dict[str, Judged]:
        election = elect(study="the round", bank=bank, tasks=tasks, validation=validation, needed=needed, rule=rule)
        by_task = {}
        for task in tasks:
            elected = election.tasks[task.name]
            ballot = elected.ballot
            by_task[task.name] = judge(elected.held_out.decisions, ballot.labels, score=ballot.score, seed=0)
        return by_task

    judged_before, judged_control, judged_round = judged(before), judged(control), judged(with_round)
    return Comparison(
        before={name: each.estimate for name, each in judged_before.items()},
        control={name: each.estimate for name, each in judged_control.items()},
        round={name: each.estimate for name, each in judged_round.items()},
        gain={name: each.over(judged_control[name]) for name, each in judged_round.items()},
    )


@dataclass(frozen=True)
class Round:
    """A completed round, as stored in ``round.json``.

    Attributes:
        number: from 1.
        recipe: the recipe's name.
        recipe_sha256: the hash of the recipe's content.
        study: the name of the study that was trained on pseudo-labels; the control is ``NAME-control``.
        teachers: the names of the studies whose trials made the labels.
        kept: whether the round scored higher than its control.
    """

    number: int
    recipe: str
    recipe_sha256: str
    study: str
    teachers: tuple[str, ...]
    kept: bool


def write_round(path: Path, ended: Round, comparison: Comparison) -> None:
    """Writes ``round.json``, which completes the round.

    Raises:
        StorageError: if the file cannot be written.
    """
    content: dict[str, Any] = {**asdict(ended), **asdict(comparison)}
    content["objective"] = {name: asdict(estimate) for name, estimate in comparison.objective.items()}
    write_whole(path / FILE, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def ended_rounds(folder: Path) -> list[Round]:
    """The completed rounds below a folder, in order.

    Raises:
        StorageError: if a ``round.json`` cannot be read.
    """
    rounds: list[Round] = []
    while (file := folder / str(len(rounds) + 1) / FILE).is_file():
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            fields = {name: content[name] for name in Round.__dataclass_fields__}
            rounds.append(Round(**{**fields, "teachers": tuple(fields["teachers"])}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = "restore the file, or remove it to compare the round again"
            raise StorageError(Fault(str(file), "be as `tutti round` wrote it", repr(error), remedy)) from error
    return rounds
