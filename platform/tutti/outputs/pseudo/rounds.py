"""A round of pseudo-labels: its folder and plan, the comparison with its control, and the stored result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tutti.bank.electorate import Checkpoints
from tutti.config.folder import Place
from tutti.ensembling.nested import Estimate
from tutti.errors import Fault, StorageError, StudyError, misfit
from tutti.files import write_whole
from tutti.outputs.election.members import elect
from tutti.outputs.election.poll import Poll

_FILE = "round.json"
_PLAN = "plan.json"


@dataclass(frozen=True)
class Comparison:
    """Nested estimates of three ensembles by task, on validation rows that had no part in choosing members.

    Attributes:
        before: the ensemble of the teachers alone.
        control: the ensemble with the control's trials.
        round: the ensemble with the trials that were trained on pseudo-labels.
        gain: ``round`` minus ``control``, paired on the same rows.
        overlap: of the tasks' rows, as in ``Estimate.mean``.
        weights: of the tasks in the study's score.
    """

    before: Mapping[str, Estimate]
    control: Mapping[str, Estimate]
    round: Mapping[str, Estimate]
    gain: Mapping[str, Estimate]
    overlap: Sequence[Sequence[float]]
    weights: Mapping[str, float]

    @property
    def objective(self) -> dict[str, Estimate]:
        """The mean over tasks of each of the four."""
        names = ("before", "control", "round", "gain")
        weights = [*self.weights.values()]
        return {name: Estimate.mean([*getattr(self, name).values()], self.overlap, weights) for name in names}

    @property
    def kept(self) -> bool:
        """Whether the round beats its control by more than the standard error, and is not below the teachers alone.

        Without the standard error two of five rounds of no value would be kept, as ``auto`` too would often choose a
        method by chance. With tasks on the same texts the error is the highest possible one, see ``Estimate.mean``.
        """
        objective = self.objective
        clear = objective["gain"].score > objective["gain"].error
        return clear and objective["round"].score >= objective["before"].score


def compare(
    before: Poll, *, control: Checkpoints, with_round: Checkpoints, needed: Mapping[str, Sequence[str]]
) -> Comparison:
    """Estimates each ensemble by nested 5-fold cross-validation: chosen on four fifths of the rows, scored on the last.

    Args:
        before: of the teachers' checkpoints, in the study that the round starts from.
        control: the same checkpoints with the control's.
        with_round: the same with those of the round.
        needed: by task, the parts that members must have predictions for.

    Raises:
        StudyError, StorageError: as ``elect`` does.
    """
    first = elect(before, needed=needed)
    others = [elect(replace(before, bank=bank), needed=needed) for bank in (control, with_round)]
    judged_before, judged_control, judged_round = (
        {name: each.together[1] for name, each in election.tasks.items()} for election in (first, *others)
    )
    return Comparison(
        before={name: each.estimate for name, each in judged_before.items()},
        control={name: each.estimate for name, each in judged_control.items()},
        round={name: each.estimate for name, each in judged_round.items()},
        gain={name: each.over(judged_control[name]) for name, each in judged_round.items()},
        overlap=first.overlap,
        weights=first.weights,
    )


@dataclass(frozen=True)
class Round:
    """A round, as stored in ``round.json`` once it has ended.

    Attributes:
        number: from 1.
        recipe: the recipe's name.
        recipe_sha256: the hash of the recipe's content.
        study: the name of the study that is trained on pseudo-labels.
        teachers: the names of the studies whose trials make the labels.
        kept: see ``Comparison.kept``; false as long as that is unknown.
        trials: how many trials of the first teacher had finished; none where that was not recorded.
    """

    number: int
    recipe: str
    recipe_sha256: str
    study: str
    teachers: tuple[str, ...]
    kept: bool
    trials: int | None = None

    @property
    def control(self) -> str:
        """The name of the study that is trained without pseudo-labels."""
        return f"{self.study}-control"


@dataclass(frozen=True)
class _Plan:
    """What must stay the same when a round goes on; ``finished`` are the ``Round.trials``."""

    recipe: str
    recipe_sha256: str
    teachers: tuple[str, ...]
    finished: int | None
    trials: int


# They validate ``round.json`` and ``plan.json``, which may have been edited by hand.
_ENDED, _PLANNED = TypeAdapter(Round), TypeAdapter(_Plan)


@dataclass(frozen=True)
class RoundFolder:
    """The folder of one round. Creating this object creates no files."""

    path: Path

    labels = Place("labels")
    ensemble = Place("ensemble")
    """The ensemble with the round's trials; there only if the round was kept."""

    def study_file(self, study: str) -> Path:
        """The file of one of the round's two studies."""
        return self.path / f"{study}.json"

    @property
    def is_planned(self) -> bool:
        """Whether the round was begun: the plan is written last, after its pseudo-labels and its studies' files."""
        return (self.path / _PLAN).is_file()

    def write_plan(self, planned: Round, *, trials: int) -> None:
        """Writes what must stay the same when the round goes on.

        Raises:
            StorageError: if the file cannot be written.
        """
        plan = _Plan(planned.recipe, planned.recipe_sha256, planned.teachers, planned.trials, trials)
        write_whole(self.path / _PLAN, json.dumps(asdict(plan), ensure_ascii=False, indent=2) + "\n")

    def check_plan(self, resumed: Round, *, trials: int | None, studies: Path) -> Round:
        """Checks that the round was begun with this recipe, teachers and number of trials; the round as it was begun.

        Args:
            trials: none if any number will do.
            studies: the folder that holds the folders of the round's two studies, for the remedy.

        Raises:
            StudyError: if it was begun with others.
            StorageError: if the plan cannot be read.
        """
        file = self.path / _PLAN
        try:
            plan = _PLANNED.validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            remedy = "restore the file, or remove it to plan the round again"
            raise StorageError(Fault(str(file), "be as `tutti round` wrote it", misfit(error), remedy)) from error
        rule = f"be that which round {resumed.number} was begun with"
        restart = f"or {self.anew(resumed, studies)}"
        if plan.teachers != resumed.teachers:
            what, got = f"the teachers {' and '.join(resumed.teachers)}", f"others than {' and '.join(plan.teachers)}"
            raise StudyError(Fault(what, rule, got, self.anew(resumed, studies)))
        if plan.recipe_sha256 != resumed.recipe_sha256:
            what, got = f"the recipe {resumed.recipe}", f"another one than {plan.recipe}"
            raise StudyError(Fault(what, rule, got, f"name that recipe, {restart}"))
        if trials not in (None, plan.trials):
            got = f"another one than {plan.trials}"
            raise StudyError(Fault(f"--trials {trials}", rule, got, f"leave it out, {restart}"))
        return replace(resumed, trials=plan.finished)

    def anew(self, begun: Round, studies: Path) -> str:
        """What to do to begin a round anew."""
        both = f"{studies / begun.study} and {studies / begun.control}"
        return f"remove {self.path}, {both} to begin the round anew"


def next_round(ended: Sequence[Round], *, study: str, trials: int, recipe: str, recipe_sha256: str) -> Round:
    """The round after those that ended.

    Args:
        study: the name of the study that the rounds start from; it and the study of each kept round are the teachers.
        trials: how many trials of that study have finished.

    Raises:
        StudyError: if an earlier round with the recipe and the teachers was not kept; other teachers label anew.
    """
    number = len(ended) + 1
    teachers = (study, *(earlier.study for earlier in ended if earlier.kept))
    for earlier in ended:
        same = (earlier.recipe_sha256, earlier.teachers) == (recipe_sha256, teachers)
        if same and earlier.trials in (None, trials) and not earlier.kept:
            rule = f"differ from that of round {earlier.number}, which was not kept"
            remedy = "change pseudo_labels or members, name another recipe, or add trials to the study"
            raise StudyError(Fault(f"the recipe {recipe}", rule, "the same", remedy))
    return Round(number, recipe, recipe_sha256, f"{study}-round-{number}", teachers, kept=False, trials=trials)


def write_round(path: Path, ended: Round, comparison: Comparison) -> Path:
    """Writes ``round.json``, which completes the round, and returns its path. Whether it is kept, ``comparison`` says.

    Raises:
        StorageError: if the file cannot be written.
    """
    content: dict[str, Any] = {**asdict(ended), "kept": comparison.kept, **asdict(comparison)}
    content["objective"] = {name: asdict(estimate) for name, estimate in comparison.objective.items()}
    write_whole(path / _FILE, json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    return path / _FILE


def ended_rounds(folder: Path) -> list[Round]:
    """The completed rounds below a folder, in order.

    Raises:
        StorageError: if a ``round.json`` cannot be read.
    """
    rounds: list[Round] = []
    while (file := folder / str(len(rounds) + 1) / _FILE).is_file():
        try:
            rounds.append(_ENDED.validate_json(file.read_bytes()))
        except (OSError, ValidationError) as error:
            remedy = "restore the file, or remove it to compare the round again"
            raise StorageError(Fault(str(file), "be as `tutti round` wrote it", misfit(error), remedy)) from error
    return rounds
