"""Which checkpoints stay under ``storage.max_gigabytes``, and that the others go without harm."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_study import StoredStudy, put_checkpoint, put_predictions

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.errors import StorageError
from tutti.modeling.checkpoint import check_checkpoint, prune_checkpoint
from tutti.orchestration.upkeep.budget import Weights, bytes_of, pairwise_distances, prune, select_to_keep
from tutti.records import TrialRecord, TrialState
from tutti.tasks.predictions import Predictions


def weights(*scores: float | None, size: int = 10, **tasks: list[float]) -> list[Weights]:
    """Weights t0, t1, ... with these scores; in one task, the same, where none are given."""
    by_task = tasks or {"a": list(scores)}
    return [
        Weights(f"t{n}", size, score, {task: own[n] for task, own in by_task.items() if own[n] is not None})
        for n, score in enumerate(scores)
    ]


def alike(count: int) -> np.ndarray:
    return np.zeros((count, count))


def test_the_best_by_score_stay_within_the_limit():
    assert select_to_keep(weights(0.5, 0.9, 0.7, 0.8), alike(4), limit=20) == ["t1", "t3"]
    assert select_to_keep(weights(0.5, 0.9, 0.7, 0.8), alike(4), limit=100) == ["t1", "t3", "t2", "t0"]


def test_a_share_of_what_stays_is_there_for_its_other_predictions():
    apart = alike(6)
    apart[5, :5] = apart[:5, 5] = 0.4  # the worst, but unlike all others
    scores = (0.9, 0.8, 0.7, 0.6, 0.5, 0.1)
    assert select_to_keep(weights(*scores), apart, limit=40) == ["t0", "t1", "t2", "t5"]
    assert select_to_keep(weights(*scores), alike(6), limit=40) == ["t0", "t1", "t2", "t3"]


def test_the_other_one_is_the_farthest_from_its_nearest():
    apart = np.array(
        [[0, 0, 0, 0.3, 0.9], [0, 0, 0, 0.3, 0.1], [0, 0, 0, 0.3, 0.1], [0.3] * 5, [0.9, 0.1, 0.1, 0.3, 0]]
    )
    assert select_to_keep(weights(0.9, 0.8, 0.7, 0.2, 0.3), apart, limit=40)[-1] == "t3"


def test_what_has_no_predictions_does_not_stay_for_being_different():
    apart = np.full((5, 5), 0.1)
    apart[3, :] = apart[:, 3] = np.nan
    assert select_to_keep(weights(0.9, 0.8, 0.7, 0.6, 0.5), apart, limit=40)[-1] == "t4"


def test_what_has_no_predictions_or_no_score_comes_last_and_a_smaller_one_may_still_fit():
    apart = np.full((3, 3), np.nan)
    assert select_to_keep(weights(None, 0.5, 0.4, a=[None, 0.5, 0.4]), apart, limit=20) == ["t1", "t2"]
    large = weights(0.9, 0.8, 0.7)
    large[1] = Weights("t1", 1000, 0.8, {"a": 0.8})
    assert select_to_keep(large, alike(3), limit=20) == ["t0", "t2"]
    assert select_to_keep([], np.zeros((0, 0)), limit=1) == []


SCORE = st.none() | st.floats(0, 1)


@given(st.data())
def test_whatever_is_there_the_best_stay_and_all_else_keeps_to_the_limit(data):
    count = data.draw(st.integers(1, 9))
    rows = st.tuples(SCORE, st.dictionaries(st.sampled_from("abc"), st.floats(0, 1)), st.integers(1, 50))
    given_ = [Weights(f"t{n}", size, score, tasks) for n in range(count) for score, tasks, size in [data.draw(rows)]]
    apart = np.array(data.draw(st.lists(st.floats(0, 1) | st.just(np.nan), min_size=count**2, max_size=count**2)))
    limit = data.draw(st.floats(0.1, 500))
    chosen = select_to_keep(given_, (square := apart.reshape(count, count)) + square.T, limit=limit)
    by_key = {one.key: one for one in given_}
    assert len(set(chosen)) == len(chosen) > 0
    best = {max((one.score for one in given_ if one.score is not None), default=None)}
    assert not best - {None} or best & {by_key[key].score for key in chosen}
    for task in {task for one in given_ for task in one.task_scores}:
        top = max(one.task_scores[task] for one in given_ if task in one.task_scores)
        assert any(by_key[key].task_scores.get(task) == top for key in chosen)
    must = 1 + len({task for one in given_ for task in one.task_scores})
    used = sum(by_key[key].size for key in chosen)
    assert used <= limit or len(chosen) <= must
    if used <= limit:  # nothing that would still fit was left out
        assert all(one.size + used > limit for one in given_ if one.key not in chosen)


def predictions(classes: list[int], values: list[float]) -> dict[str, Predictions]:
    ids = np.array([f"r{row}" for row in range(len(classes))])
    probabilities = np.eye(2, dtype=np.float32)[classes]
    numbers = np.array(values, dtype=np.float32)
    return {
        "a": Predictions(ids=ids, outputs=probabilities, names=("n", "y")),
        "b": Predictions(ids=ids, outputs=numbers),
    }


def test_distances_are_the_share_of_other_classes_and_of_lacking_correlation():
    one, other = predictions([0, 0, 1, 1], [1, 2, 3, 4]), predictions([0, 1, 1, 1], [4, 3, 2, 1])
    apart = pairwise_distances([one, None, other, predictions([0, 0, 1, 1], [2, 2, 2, 2])])
    assert apart[0, 2] == pytest.approx((0.25 + 1) / 2)
    assert apart[0, 3] == pytest.approx((0 + 1) / 2)
    assert np.isnan(apart[1]).all()
    assert np.isnan(pairwise_distances([None, None])).all()


@pytest.fixture
def study(tmp_path: Path) -> StoredStudy:
    """A study of four trials with checkpoints of 1,000 bytes and a little more, the last of which runs."""
    study = StoredStudy(StudyFolder(tmp_path / "moods"))
    for number, score in enumerate((0.6, 0.9, 0.8, 0.99)):
        place = study.folder.trial(f"t{number:04d}").path
        put_checkpoint(place / "best", number=number, score=score, size=1000)
        if number == 2:
            (place / "best").rename(place / "moved")
            (place / "fold-0").mkdir()
            (place / "moved").rename(place / "fold-0" / "best")
        if number < 3:
            put_predictions(study, number, score=score)
    return study


def trials() -> list[TrialRecord]:
    finished, running = TrialState.FINISHED, TrialState.RUNNING
    scores = ((0.6, TrialState.STOPPED), (0.9, finished), (0.8, finished), (0.99, running))
    return [TrialRecord(f"t{n:04d}", n, state, score, {"mood": score}) for n, (score, state) in enumerate(scores)]


def checkpoints_left(study: StoredStudy) -> list[str]:
    """Whole checkpoints."""
    place = study.folder.path / "trials"
    return sorted(str(file.parent.relative_to(place)) for file in place.rglob("tutti.json"))


def test_a_gigabyte_is_a_thousand_million_bytes(study):
    used = sum(bytes_of(study.folder.trial(trial.key)) for trial in trials()[:3])
    assert prune(study.folder, trials=trials(), max_gigabytes=used / 1e9) == []
    assert prune(study.folder, trials=trials(), max_gigabytes=(used - 1) / 1e9) == ["t0000"]


def test_weights_that_cannot_vote_go_first_however_high_their_score(study):
    failed = [replace(trials()[0], state=TrialState.FAILED, score=0.95, task_scores={"mood": 0.95}), *trials()[1:]]
    others = sum(bytes_of(study.folder.trial(trial.key)) for trial in trials()[1:3])
    assert prune(study.folder, trials=failed, max_gigabytes=others / 1e9) == ["t0000"]


def test_beyond_the_limit_weights_of_ended_trials_go_and_their_predictions_stay(study):
    assert prune(study.folder, trials=trials(), max_gigabytes=2e-6) == ["t0000", "t0002"]
    assert checkpoints_left(study) == ["t0001/best", "t0003/best"]
    bank = Bank(study.folder.bank)
    assert [(record.key, record.path is None) for record in bank.records()] == [
        ("t0000", True),
        ("t0001", False),
        ("t0002", True),
    ]
    for key in ("t0000", "t0001", "t0002"):
        bank.check(key)
    assert prune(study.folder, trials=trials(), max_gigabytes=2e-6) == []


def test_weights_whose_predictions_never_came_into_the_bank_go_like_any_others(study):
    shutil.rmtree(study.folder.bank / "t0000")
    assert prune(study.folder, trials=trials(), max_gigabytes=2e-6) == ["t0000", "t0002"]


@pytest.mark.parametrize("moment", ["before the weights", "within the weights", "before the bank"])
def test_a_kill_while_pruning_leaves_no_half_checkpoint_and_the_next_call_goes_on(study, monkeypatch, moment):
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if moment == "before the bank":
        monkeypatch.setattr(Bank, "forget_weights", killed)
    else:

        def half(path: Path) -> None:
            if moment == "within the weights":
                (path / "model.safetensors").unlink()
            killed()

        monkeypatch.setattr(shutil, "rmtree", half)
    with pytest.raises(KeyboardInterrupt):
        prune(study.folder, trials=trials(), max_gigabytes=2e-6)
    monkeypatch.undo()
    with pytest.raises(StorageError, match="pruned"):
        check_checkpoint(study.folder.trial("t0000").best)
    prune(study.folder, trials=trials(), max_gigabytes=2e-6)
    assert checkpoints_left(study) == ["t0001/best", "t0003/best"]
    assert not study.folder.trial("t0000").best.exists()
    assert [record.path is None for record in Bank(study.folder.bank).records()] == [True, False, True]


def test_a_trial_of_which_a_kill_left_some_folds_loses_them_too_though_all_would_be_within_the_limit(study):
    place = study.folder.trial("t0002")
    put_checkpoint(place.fold(1).best, number=2, score=0.8, size=1000)
    prune_checkpoint(place.fold(0).best)
    assert prune(study.folder, trials=trials(), max_gigabytes=1) == []
    assert checkpoints_left(study) == ["t0000/best", "t0001/best", "t0003/best"]
    assert [record.path is None for record in Bank(study.folder.bank).records()] == [False, False, True]


def test_a_file_system_that_fails_is_told_as_a_fault_of_the_storage(study, monkeypatch):
    def away(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "rglob", away)
    with pytest.raises(StorageError, match="Stale file handle"):
        prune(study.folder, trials=trials(), max_gigabytes=1)


@pytest.mark.parametrize("linked", ["trial", "checkpoint"])
def test_a_checkpoint_that_is_a_link_to_another_place_is_left_alone(study, linked):
    elsewhere, trial = study.folder.path.parent / "elsewhere", study.folder.trial("t0000")
    link = trial.path if linked == "trial" else trial.best
    link.rename(elsewhere)
    link.symlink_to(elsewhere)
    assert prune(study.folder, trials=trials(), max_gigabytes=1e-9) == ["t0002"]
    assert (trial.best / "tutti.json").is_file()


def test_ended_trials_without_weights_are_looked_at_once_in_their_folders_and_in_the_bank(study, monkeypatch):
    looked, read, settled = [], [], set()
    trial, records = StudyFolder.trial, Bank.records
    monkeypatch.setattr(StudyFolder, "trial", lambda self, key: looked.append(key) or trial(self, key))
    monkeypatch.setattr(Bank, "records", lambda self, keys: records(self, read.append([*keys]) or read[-1]))
    assert prune(study.folder, trials=trials(), max_gigabytes=2e-6, settled=settled) == ["t0000", "t0002"]
    assert (read, settled) == ([["t0000", "t0001", "t0002"]], {"t0000", "t0002"})
    looked.clear()
    assert prune(study.folder, trials=trials(), max_gigabytes=2e-6, settled=settled) == []
    assert (read[1:], set(looked)) == ([["t0001"]], {"t0001"})
