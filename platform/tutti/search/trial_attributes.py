"""How a trial is stored in Optuna: the names of its user attributes, and the records read back from them."""

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
# Names of trial attributes.
KEY = "key"  # the trial's key, stored once Tune has it
MEASURED = "measured"  # objective values of a finished trial; absent where the score is the only objective
EXCHANGES = "exchanges"  # every time the trial continued from another trial's checkpoint (population-based training)
TRAINED = "trained"  # seconds of training up to a running trial's last report
SPEED = "speed"  # speed and memory of training up to a trial's last report, by the names of ``Usage.metrics``
FITTED = "fitted"  # whether the trial has trained for a whole epoch, which shows that it fits into memory
IN_NEW_STAGE = "in_new_stage"  # whether it has trained no whole epoch of its present stage, which may need more memory
FOLD = "fold"  # index of the fold that was started last
STOPPING = "stopping"  # the epoch at which the scheduler decided to stop the trial
ENDED = "ended"  # Unix time; Optuna's own has no time zone, and is that of whatever machine reads it
ENDING = "ending"  # final score and task scores, where these are not those of the best report


@dataclass(frozen=True)
class Proposal:
    """A trial to run.

    Attributes:
        key: the trial's one identity, ``t0007`` for number 7.
        number: zero-based index of the trial in its study.
        parameters: the sampled values, in the order of the search space, except that a key follows the keys that its
            condition names. Keys whose condition does not hold are left out.
        halved: the reason for halving its batches, as bound to the trial; None where they are not halved.
        fitted: whether an earlier run has trained it for a whole epoch (of a fold, too). It then fits into memory, and
            its checkpoints were saved with the batch size that it still has.
        in_new_stage: whether that run has trained no whole epoch of its last stage, which may not fit.
        seconds: training time of earlier runs, as far as it was reported.
        stopping: the epoch at which the scheduler of an earlier run decided to stop it; 0 if none did.
        fold: the fold that an earlier run was training when it was interrupted; None where that is unknown.
        optuna_number: Optuna's trial number, which also counts the older studies' trials that the study started from.
    """

    key: str
    number: int
    parameters: Mapping[str, Scalar]
    halved: str | None = None
    fitted: bool = False
    in_new_stage: bool = False
    stopping: int = 0
    seconds: float = 0.0
    fold: int | None = None
    optuna_number: int = 0


def trial_key(number: int) -> str:
    """The trial's key, its one identity: ``t0007`` for number 7."""
    return f"t{number:04d}"


def is_key(name: str) -> bool:
    """Whether a name is a trial's key."""
    return name[:1] == "t" and name[1:].isdecimal() and name == trial_key(int(name[1:]))


def number_of(trial: FrozenTrial, position: int) -> int:
    """Index of a trial in its study, by its stored key.

    Optuna gives a new trial the number of rows before it: where one was deleted, that of a trial that exists.

    Args:
        position: its place among the study's own trials, which counts for a trial that stored no key.
    """
    key = trial.user_attrs.get(KEY)
    return int(key[1:]) if isinstance(key, str) and is_key(key) else position


def proposal(trial: FrozenTrial, number: int) -> Proposal:
    """The proposal of a trial that an earlier driver left running.

    Args:
        number: index of the trial among the study's own trials.
    """
    attributes = trial.user_attrs
    exchanges, fold, stopping = (attributes.get(name) for name in (EXCHANGES, FOLD, STOPPING))
    if stopping is True:  # as earlier versions stored it
        stopping = max(scores_by_epoch(trial), default=1)
    return Proposal(
        key=trial_key(number),
        number=number,
        parameters=dict(exchanges[-1]["parameters"] if exchanges else trial.params),
        halved=attributes.get("halved"),
        fitted=bool(attributes.get(FITTED)),
        in_new_stage=bool(attributes.get(IN_NEW_STAGE)),
        stopping=int(stopping or 0),
        seconds=float(attributes.get(TRAINED, 0.0)),
        fold=None if fold is None or fold + 1 in scores_by_epoch(trial) else fold,  # reports count completed folds
        optuna_number=trial.number,
    )


def task_scores_of(epoch: int) -> str:
    """Name of the attribute with the task scores of an epoch."""
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


def measured(trial: FrozenTrial) -> dict[str, float]:
    """Objective values of a finished trial by name, always with its score; empty for any other trial."""
    if trial.state is not optuna.trial.TrialState.COMPLETE or not trial.values:
        return {}
    return dict(trial.user_attrs.get(MEASURED, {"score": trial.values[0]}))


def ended_at(trial: FrozenTrial) -> float | None:
    """Unix time at which a trial ended; of a trial of an earlier version, as this machine reads Optuna's time."""
    if not trial.state.is_finished():
        return None
    at = trial.user_attrs.get(ENDED)
    return trial.datetime_complete.timestamp() if at is None and trial.datetime_complete else at


def violates(trial: FrozenTrial) -> bool:
    """Whether a trial violates a constraint: its parameters did not fit into memory."""
    return any(value > 0 for value in trial.constraints.values())


def record(trial: FrozenTrial, number: int) -> TrialRecord:
    """The record of a trial for the other rooms.

    Args:
        number: index of the trial among the study's own trials.
    """
    scores, values = scores_by_epoch(trial), measured(trial)
    best = values["score"] if values else max(scores.values(), default=None)
    best_epoch = next((epoch for epoch, score in scores.items() if score == best), None)
    best_scores = {} if best_epoch is None else trial.user_attrs.get(task_scores_of(best_epoch), {})
    # The constraint is written before the state, and a driver may die in between: a running trial can have one.
    infeasible = trial.state is optuna.trial.TrialState.PRUNED and violates(trial)
    final = trial.user_attrs.get(ENDING, {"score": best, "task_scores": best_scores})
    return TrialRecord(
        key=trial_key(number),
        number=number,
        state=TrialState.FAILED if infeasible else STATES[trial.state],
        score=final["score"],
        task_scores=final["task_scores"],
        parameters=dict(trial.params),
        scores_by_epoch=scores,
        last_task_scores=trial.user_attrs.get(task_scores_of(max(scores, default=0)), {}),
        seconds=trial.user_attrs.get("seconds"),
        ended=ended_at(trial),
        reason=trial.user_attrs.get("reason"),
        exchanges=tuple(trial.user_attrs.get(EXCHANGES, ())),
        measured=values if MEASURED in trial.user_attrs else {},
        speed=trial.user_attrs.get(SPEED, {}),
    )
