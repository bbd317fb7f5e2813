"""How Optuna keeps a trial, and what that says of it."""

from __future__ import annotations

import optuna
from optuna.trial import FrozenTrial

from tutti.records import TrialRecord, TrialState

STATES = {
    optuna.trial.TrialState.RUNNING: TrialState.RUNNING,
    optuna.trial.TrialState.COMPLETE: TrialState.FINISHED,
    optuna.trial.TrialState.PRUNED: TrialState.STOPPED,
    optuna.trial.TrialState.FAIL: TrialState.FAILED,
}
ENDING = "ending"  # the attribute that a trial's record is taken from, where the reports do not tell it


def trial_key(number: int) -> str:
    """A trial's one identity."""
    return f"t{number:04d}"


def task_scores_of(epoch: int) -> str:
    """The attribute that keeps what the tasks scored after an epoch."""
    return f"task_scores:{epoch}"


def record(trial: FrozenTrial, number: int) -> TrialRecord:
    """A trial as the rest of the house knows it.

    Args:
        number: of those of the study's own.
    """
    scores = dict(sorted(trial.intermediate_values.items()))
    best_epoch = max(scores, key=lambda epoch: scores[epoch], default=None)
    told = [trial.value] if trial.state is optuna.trial.TrialState.COMPLETE and trial.value is not None else []
    best = max([*scores.values(), *told], default=None)
    best_scores = {} if best_epoch is None else trial.user_attrs.get(task_scores_of(best_epoch), {})
    infeasible = any(value > 0 for value in trial.constraints.values())
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
    )
