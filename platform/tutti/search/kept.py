"""How Optuna keeps a trial, and what that says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import optuna
from optuna.trial import FrozenTrial

from tutti.records import Scalar, TrialRecord, TrialState

STATES = {
    optuna.trial.TrialState.RUNNING: TrialState.RUNNING,
    optuna.trial.TrialState.COMPLETE: TrialState.FINISHED,
    optuna.trial.TrialState.PRUNED: TrialState.STOPPED,
    optuna.trial.TrialState.FAIL: TrialState.FAILED,
}
MEASURED = "measured"  # the attribute that keeps the values of a study whose objective is not the score alone
EXCHANGES = "exchanges"  # the attribute of the states that a trial went on from that were another one's
TRAINED = "trained"  # the attribute of how many seconds a running trial was trained by its last report
FITTED = "fitted"  # the attribute of whether a trial has trained for a whole epoch, and so fits into memory
FOLD = "fold"  # the attribute of the fold whose run was begun last
ENDING = "ending"  # the attribute that a trial's record is taken from, where it is not the best of its reports


@dataclass(frozen=True)
class Proposal:
    """A trial to run.

    Attributes:
        key: the trial's one identity, ``t0007`` for number 7.
        number: the how manieth trial of the study it is, from 0.
        parameters: what the search space chose, in the order in which it was drawn: the space's, but that a key whose
            condition does not hold is left out, and that one comes after those that its condition names.
        halved: why its batches are to be halved, as it was bound to the trial; none where they are not.
        fitted: whether an earlier run has trained it for a whole epoch, of a fold too: it fits into memory, and its
            states are of the batch that it has.
        seconds: how long it was trained by then, as far as that was reported.
        fold: the one that an earlier run was training when it was cut off; none where that is not known.
        optuna_number: Optuna's own, which counts the trials of older studies too that the study began with.
    """

    key: str
    number: int
    parameters: Mapping[str, Scalar]
    halved: str | None = None
    fitted: bool = False
    seconds: float = 0.0
    fold: int | None = None
    optuna_number: int = 0


def trial_key(number: int) -> str:
    """A trial's one identity."""
    return f"t{number:04d}"


def proposal(trial: FrozenTrial, number: int) -> Proposal:
    """A trial that a driver left running.

    Args:
        number: of those of the study's own.
    """
    exchanges, fold = trial.user_attrs.get(EXCHANGES), trial.user_attrs.get(FOLD)
    return Proposal(
        trial_key(number),
        number,
        dict(exchanges[-1]["parameters"] if exchanges else trial.params),
        trial.user_attrs.get("halved"),
        fitted(trial),
        float(trial.user_attrs.get(TRAINED, 0.0)),
        None if fold is None or fold + 1 in reported(trial) else fold,  # a whole fold was reported on
        trial.number,
    )


def task_scores_of(epoch: int) -> str:
    """The attribute that keeps what the tasks scored after an epoch."""
    return f"task_scores:{epoch}"


def score_of(epoch: int) -> str:
    """The attribute that keeps an epoch's score in a study of several objectives.

    There Optuna has no intermediate values: its samplers would fail on a trial that was stopped and has some.
    """
    return f"score:{epoch}"


def reported(trial: FrozenTrial) -> dict[int, float]:
    """What a trial scored, by epoch."""
    kept = {int(name[6:]): value for name, value in trial.user_attrs.items() if name.startswith("score:")}
    return dict(sorted((trial.intermediate_values or kept).items()))


def fitted(trial: FrozenTrial) -> bool:
    """Whether it has trained for a whole epoch."""
    return bool(trial.user_attrs.get(FITTED))


def measured(trial: FrozenTrial) -> dict[str, float]:
    """By objective, what a finished trial was told with, and its score; nothing of any other one."""
    if trial.state is not optuna.trial.TrialState.COMPLETE or not trial.values:
        return {}
    return dict(trial.user_attrs.get(MEASURED, {"score": trial.values[0]}))


def record(trial: FrozenTrial, number: int) -> TrialRecord:
    """A trial as the rest of the house knows it.

    Args:
        number: of those of the study's own.
    """
    scores, values = reported(trial), measured(trial)
    best = values["score"] if values else max(scores.values(), default=None)
    best_epoch = next((epoch for epoch, score in scores.items() if score == best), None)
    best_scores = {} if best_epoch is None else trial.user_attrs.get(task_scores_of(best_epoch), {})
    told = trial.state is optuna.trial.TrialState.PRUNED  # the constraint is kept before, where a driver may die
    infeasible = told and any(value > 0 for value in trial.constraints.values())
    last = trial.user_attrs.get(ENDING, {"score": best, "task_scores": best_scores})
    return TrialRecord(
        key=trial_key(number),
        number=number,
        state=TrialState.FAILED if infeasible else STATES[trial.state],
        score=last["score"],
        task_scores=last["task_scores"],
        parameters=dict(trial.params),
        scores_by_epoch=scores,
        seconds=trial.user_attrs.get("seconds"),
        reason=trial.user_attrs.get("reason"),
        exchanges=tuple(trial.user_attrs.get(EXCHANGES, ())),
        measured=values if MEASURED in trial.user_attrs else {},
    )
