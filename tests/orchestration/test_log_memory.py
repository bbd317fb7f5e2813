"""What a trial's lack of memory does to its records."""

from __future__ import annotations

import pytest

from tutti.records import TrialState


def left(logged) -> list[tuple[str | None, bool]]:
    """Of the trials that a later run would go on with, why their batches are halved, and whether they have fitted."""
    known = [each.resumption for each in logged.store.unfinished()]
    return [(each.halved, each.fitted) for each in known]


def test_a_trial_whose_batch_was_halved_keeps_that_for_its_next_run_and_shows_it(logged, capsys):
    trial = logged.start()
    logged.log.on_trial_result(0, [], trial, {"halved": "no memory"})
    assert capsys.readouterr().out == "t0000: starts again with half the batch, out of memory: no memory\n"
    assert left(logged) == [("no memory", False)]
    logged.epoch(trial, 1, 0.8)
    assert left(logged) == [("no memory", True)]
    logged.epoch(trial, 2, 0.8, **logged.FINAL)
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is TrialState.FINISHED
    assert logged.run(trial).tags["tutti.halved_batch"] == "no memory"


def test_a_trial_whose_batch_was_halved_in_a_later_stage_is_as_one_that_has_completed_no_epoch(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.8, ends_stage=True)
    logged.log.on_trial_result(0, [], trial, {"halved": "no memory"})
    assert left(logged) == [("no memory", False)]
    assert logged.record(trial).scores_by_epoch == {}


def test_a_trial_that_begins_anew_with_half_its_batch_is_tracked_with_the_scores_that_the_store_has(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5, ends_stage=True, at=1001.0)
    logged.log.on_trial_result(0, [], trial, {"halved": "no memory"})
    logged.epoch(trial, 1, 0.7, ends_stage=True, at=1101.0)
    logged.epoch(trial, 2, 0.8, at=1102.0)
    assert logged.run(trial).metrics["validation_score"] == logged.record(trial).scores_by_epoch == {1: 0.7, 2: 0.8}
    assert logged.run(trial).metrics["mood/accuracy"] == {1: 0.7, 2: 0.8}


def test_a_halved_trial_that_a_killed_driver_leaves_before_its_first_score_is_tracked_with_those_that_come(logged):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5, ends_stage=True, at=1001.0)
    logged.log.on_trial_result(0, [], trial, {"halved": "no memory"})
    logged.log._running.clear()  # its driver is killed
    again = logged.go_on(logged.store.unfinished()[0])
    logged.epoch(again, 1, 0.7, at=1101.0)
    assert logged.run(trial).metrics["validation_score"] == {1: 0.7}


def test_a_halved_trial_whose_driver_is_killed_as_it_logs_the_first_score_begins_anew_again(logged, monkeypatch):
    def killed(key: str, *, at: float) -> None:
        raise KeyboardInterrupt

    trial = logged.start()
    logged.epoch(trial, 1, 0.5, ends_stage=True, at=1001.0)
    logged.log.on_trial_result(0, [], trial, {"halved": "no memory"})
    with monkeypatch.context() as patch:
        patch.setattr(logged.tracker, "start_over", killed)
        with pytest.raises(KeyboardInterrupt):
            logged.epoch(trial, 1, 0.6, at=1101.0)
    logged.log._running.clear()  # its driver is dead
    again = logged.go_on(logged.store.unfinished()[0])
    assert again.config[
        "resumption"
    ].begins_anew  # from saved states it would only repeat this score, and start over no more
    logged.epoch(again, 1, 0.7, at=1201.0)
    assert logged.run(trial).metrics["validation_score"] == {1: 0.7}


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_a_trial_that_begins_anew_with_half_its_batch_has_the_scores_of_that_alone(logged, parts):
    trial = logged.start()
    logged.epoch(trial, 1, 0.8, whole=False)
    logged.epoch(trial, 2, 0.9, whole=False)
    logged.log.on_trial_result(0, [], trial, {"halved": "no memory"})
    assert left(logged) == [("no memory", False)]
    scores = {1: 0.5, 2: 0.7, 3: 0.6}
    for part in range(1, parts + 1):
        logged.epoch(trial, part, scores[part], whole=False)
    if parts == 3:
        best = {"best_score": 0.7, "best_epoch": 2, "best_task_scores": {"mood": 0.7}}
        logged.epoch(trial, 4, 0.6, **logged.FINAL | best)
    elif not parts:  # neither does that fit
        logged.log.on_trial_result(0, [], trial, {"failed": "out of memory", "infeasible": True})
    logged.log.on_trial_complete(0, [], trial)
    record, run = logged.record(trial), logged.run(trial)
    state, score, reason = {
        0: (TrialState.FAILED, None, "out of memory"),
        1: (TrialState.STOPPED, 0.5, "fell behind the others after epoch 1"),
        3: (TrialState.FINISHED, 0.7, None),
    }[parts]
    assert (record.state, record.score, record.reason) == (state, score, reason)
    assert record.task_scores == ({} if score is None else {"mood": score})
    assert [*run.metrics.get("score", {}).values()] == ([] if score is None else [score])


@pytest.mark.parametrize(("whole", "fits"), [(False, False), (True, True)])
def test_a_trial_has_once_fitted_into_memory_from_its_first_whole_epoch_on_in_later_runs_too(logged, whole, fits):
    trial = logged.start()
    logged.epoch(trial, 1, 0.5, whole=whole)
    assert [fitted for _, fitted in left(logged)] == [fits]
    logged.epoch(trial, 2, 0.6, whole=True)
    logged.epoch(trial, 3, 0.6, whole=False)
    assert [fitted for _, fitted in left(logged)] == [True]


def test_later_runs_know_of_a_stage_that_a_trial_has_completed_no_epoch_of(logged):
    trial, known = logged.start(), []
    for epoch, evaluation in enumerate(({"ends_stage": True}, {"whole": False}, {}), start=1):
        logged.epoch(trial, epoch, 0.5, **evaluation)
        known += [each.resumption.in_new_stage for each in logged.store.unfinished()]
    assert known == [True, True, False]


def test_a_trial_that_does_not_fit_into_memory_has_failed_and_samplers_learn_from_it(logged, tmp_path):
    import optuna

    trial = logged.start()
    logged.log.on_trial_result(0, [], trial, {"failed": "out of memory", "infeasible": True})
    logged.log.on_trial_complete(0, [], trial)
    assert logged.record(trial).state is logged.run(trial).state is TrialState.FAILED
    assert logged.record(trial).reason == logged.run(trial).reason == "out of memory"
    [stored] = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path / 'optuna.db'}").trials
    assert stored.state is optuna.trial.TrialState.PRUNED
    assert stored.constraints == {"memory": 1.0}
