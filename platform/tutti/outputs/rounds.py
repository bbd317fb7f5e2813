"""Whether a round of pseudo-labels was worth it, and the file that says so."""

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
    """Nested estimates, on validation rows that had no part in choosing members, of three ensembles: by task.

    Attributes:
        before: of the studies that there were.
        control: with the control's trials.
        round: with the trials that were trained on pseudo-labels.
        gain: by how much ``round`` is above ``control``, in pairs on the same rows.
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
        """Whether the round gained over its control."""
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
    """Chooses each ensemble anew on four fifths of the validation rows, and judges it on the last one, fold by fold.

    Args:
        validation: per task, the ids of its validation rows in their order.
        needed: per task, the parts that members must have predictions for.

    Raises:
        StudyError, StorageError: as ``elect`` does.
    """

    def judged(bank: Checkpoints) -> dict[str, Judged]:
        election = elect(study="the round", bank=bank, tasks=tasks, validation=validation, needed=needed, rule=rule)
        found = {}
        for task in tasks:
            elected = election.tasks[task.name]
            ballot = elected.ballot
            found[task.name] = judge(elected.held.decisions, ballot.labels, score=ballot.score, seed=0)
        return found

    old, plain, new = judged(before), judged(control), judged(with_round)
    return Comparison(
        before={name: each.estimate for name, each in old.items()},
        control={name: each.estimate for name, each in plain.items()},
        round={name: each.estimate for name, each in new.items()},
        gain={name: each.over(plain[name]) for name, each in new.items()},
    )


@dataclass(frozen=True)
class Round:
    """A round that has ended, as ``round.json`` keeps it.

    Attributes:
        number: from 1.
        recipe: its name.
        recipe_sha256: of its content.
        study: the name of the study that was trained on pseudo-labels; the control's is ``NAME-control``.
        teachers: names of the studies whose trials made the labels.
        kept: whether it gained.
    """

    number: int
    recipe: str
    recipe_sha256: str
    study: str
    teachers: tuple[str, ...]
    kept: bool


def write_round(path: Path, ended: Round, comparison: Comparison) -> None:
    """Writes ``round.json``, which makes the round complete.

    Raises:
        StorageError: where the file system refuses.
    """
    content: dict[str, Any] = {**asdict(ended), **asdict(comparison)}
    content["objective"] = {name: asdict(estimate) for name, estimate in comparison.objective.items()}
    write_whole(path / FILE, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def ended_rounds(folder: Path) -> list[Round]:
    """The rounds below a folder that have ended, in order.

    Raises:
        StorageError: where one cannot be read.
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
