"""How a trial is stored in Optuna: the names of its user attributes, and the records read back from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from tutti.records import Scalar, TrialRecord, TrialState

STATES = {
    optuna.trial.TrialState.RUNNING: TrialState.RUNNING,
    optuna.trial.TrialState.COMPLETE: TrialState.FINISHED,
    optuna.trial.TrialState.PRUNED: TrialState.STOPPED,
    optuna.trial.TrialState.FAIL: TrialState.FAILED,
}
# Names of trial attributes.
RESUMPTION = "resumption"  # a Resumption
ENDING = "ending"  # how the trial ended, written just before its state in Optuna: see ``StudyStore.finish``


@dataclass(frozen=True)
class Resumption:
    """All that a later run, or further workers in the same run, have to know of a trial that goes on.

    Attributes:
        seconds: training time up to the last report.
        halved: why its batches are halved; None where they are not.
        fitted: it has trained for a whole epoch (of a fold, too) with these batches, which therefore fit into memory.
        in_new_stage: it has trained no whole epoch of its present stage, which may need more memory.
        stopping: the epoch at whose score the scheduler decided to stop it; 0 if it did not.
        fold: index of the fold that was trained last.
        exchanges: every time it continued from another trial's checkpoint: see ``TrialRecord``.
        speed: speed and memory of training up to the last report, by the names of ``Usage.metrics``.
    """

    seconds: float = 0.0
    halved: str | None = None
    fitted: bool = False
    in_new_stage: bool = False
    stopping: int = 0
    fold: int | None = None
    exchanges: tuple[Mapping[str, Any], ...] = ()
    speed: Mapping[str, float] = field(default_factory=dict)

    @property
    def begins_anew(self) -> bool:
        """Whether the trial begins with the pretrained weights: its saved states may be those of the whole batch."""
        return self.halved is not None and not self.fitted

    def exchanged(self, exchange: Mapping[str, Any]) -> Resumption:
        """With an exchange, which replaces those of its epoch and of later ones: the trial has started over since."""
        earlier = (each for each in self.exchanges if each["epoch"] < exchange["epoch"])
        return replace(self, exchanges=(*earlier, dict(exchange)))


@dataclass(frozen=True)
class Proposal:
    """A trial to run.

    Attributes:
        key: the trial's one identity, ``t0007`` for number 7.
        number: zero-based index of the trial in its study.
        parameters: the sampled values, in the order of the search space, except that a key follows the keys that its
            condition names. Keys whose condition does not hold are left out. After an exchange, those from then on.
        resumption: what earlier runs have left of it.
        optuna_number: Optuna's trial number, which also counts the older studies' trials that the study started from.
    """

    key: str
    number: int
    parameters: Mapping[str, Scalar]
    resumption: Resumption = Resumption()
    optuna_number: int = 0


def trial_key(number: int) -> str:
    """The trial's key, its one identity: ``t0007`` for number 7."""
    return f"t{number:04d}"


def is_key(name: str) -> bool:
    """Whether a name is a trial's key."""
    return name[:1] == "t" and name[1:].isdecimal() and name == trial_key(int(name[1:]))


def resumption(trial: FrozenTrial) -> Resumption:
    """What a trial's study has stored for its next run."""
    stored = dict(trial.user_attrs.get(RESUMPTION, {}))
    return Resumption(**{**stored, "exchanges": tuple(stored.get("exchanges", ()))})


def proposal(trial: FrozenTrial, number: int) -> Proposal:
    """The proposal of a trial that an earlier driver left running.

    Args:
        number: index of the trial among the study's own trials.
    """
    left = resumption(trial)
    if left.fold is not None and left.fold + 1 in scores_by_epoch(trial):  # which count complete folds
        left = replace(left, fold=None)
    parameters = left.exchanges[-1]["parameters"] if left.exchanges else trial.params
    return Proposal(trial_key(number), number, dict(parameters), left, trial.number)


def task_scores_of(epoch: int) -> str:
    """Name of the attribute with the scores of an epoch by ``TASK``, and of report sets by ``TASK/SET``."""
    return f"task_scores:{epoch}"


def score_of(epoch: int) -> str:
    """Name of the attribute with the score of an epoch in a multi-objective study.

    Such a study has no intermediate values in Optuna: its samplers fail on pruned trials that have some.
    """
    return f"score:{epoch}"


def scores_by_epoch(trial: FrozenTrial) -> dict[int, float]:
    """The reported scores of a trial by epoch, in ascending order."""
    attributes = {int(name[6:]): value for name, value in trial.user_attrs.items() if name.startswith("score:")}
    return dict(sorted((trial.intermediate_values or attributes).items()))


def _scores_at(trial: FrozenTrial, epoch: int, *, of_sets: bool = False) -> dict[str, float]:
    """The scores of an epoch by task, or those by report set."""
    scores = trial.user_attrs.get(task_scores_of(epoch), {})
    return {name: score for name, score in scores.items() if ("/" in name) == of_sets}


def ending(trial: FrozenTrial) -> Mapping[str, Any]:
    """How a trial ended, as ``StudyStore.finish`` stored it; empty for one that runs or was copied."""
    return trial.user_attrs.get(ENDING, {}) if trial.state.is_finished() else {}


def measured(trial: FrozenTrial) -> dict[str, float]:
    """Objective values of a finished trial by name, always with its score; empty for any other trial."""
    if trial.state is not optuna.trial.TrialState.COMPLETE or not trial.values:
        return {}
    return dict(ending(trial).get("measured") or {"score": trial.values[0]})


def violates(trial: FrozenTrial) -> bool:
    """Whether a trial violates a constraint: its parameters did not fit into memory."""
    return any(value > 0 for value in trial.constraints.values())


def record(trial: FrozenTrial, number: int) -> TrialRecord:
    """The record of a trial for the other rooms.

    Args:
        number: index of the trial among the study's own trials.
    """
    scores, values, end = scores_by_epoch(trial), measured(trial), ending(trial)
    best = values["score"] if values else max(scores.values(), default=None)
    best_epoch = next((epoch for epoch, score in scores.items() if score == best), None)
    best_scores = {} if best_epoch is None else _scores_at(trial, best_epoch)
    # Some sets are evaluated at the end alone, which need not be the best epoch.
    of_sets = (_scores_at(trial, epoch, of_sets=True) for epoch in (best_epoch or 0, *reversed(scores)))
    # The constraint is written before the state, and a driver may die in between: a running trial can have one.
    infeasible = trial.state is optuna.trial.TrialState.PRUNED and violates(trial)
    is_final = "task_scores" in end
    return TrialRecord(
        key=trial_key(number),
        number=number,
        state=TrialState.FAILED if infeasible else STATES[trial.state],
        score=end["score"] if is_final else best,
        task_scores=end["task_scores"] if is_final else best_scores,
        parameters=dict(trial.params),
        scores_by_epoch=scores,
        set_scores=next(filter(None, of_sets), {}),
        last_task_scores=_scores_at(trial, max(scores, default=0)),
        seconds=end.get("seconds"),
        ended=end.get("at"),
        reason=end.get("reason"),
        exchanges=resumption(trial).exchanges,
        speed=resumption(trial).speed,
        measured=end.get("measured") or {},
    )
