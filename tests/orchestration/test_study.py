"""What can be told of a study's run without starting one."""

from __future__ import annotations

import errno
import fcntl
import getpass
import os
import re
import socket
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from filelock import FileLock
from memory_tracker import MemoryTracker
from word_backbone import save_decoder

from tutti.bank.bank import Bank
from tutti.config.backbones import by_backbone
from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import ClaimLostError, ConfigError, Fault, StorageError, StudyError, TrialError
from tutti.orchestration.before.abilities import Abilities, check_backbone
from tutti.orchestration.before.rows import prepare_rows
from tutti.orchestration.driver.log import StudyLog
from tutti.orchestration.driver.study import _check_folders, clear_ended, run_study
from tutti.orchestration.upkeep.lock import is_running, study_lock
from tutti.orchestration.worker import pool
from tutti.records import CheckpointRecord, TrialRecord, TrialState
from tutti.search.study_store import StudyStore
from tutti.tasks.predictions import Predictions

LITTLE = Abilities(
    positions=512,
    layers=2,
    own_layers=2,
    marks_pairs=False,
    starts_special=False,
    checkpoints_activations=False,
    linear_layers=False,
    half_precision=False,
    embeds_words=False,
    tokens=8,
    token_types=1,
)
MUCH = Abilities(
    positions=None,
    layers=None,
    own_layers=12,
    marks_pairs=True,
    starts_special=True,
    checkpoints_activations=True,
    linear_layers=True,
    half_precision=True,
    embeds_words=True,
    tokens=None,
    token_types=None,
)
ON = {"type": "categorical", "choices": [False, True]}


def study(**changes) -> StudyConfig:
    task = {"layout": "competition", "train": "/x"}
    return StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"a": task}, **changes})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"training": {"reinit_layers": 3}}, "training.reinit_layers"),
        ({"search_space": {"pooling_layers": {"type": "int", "low": 1, "high": 4}}}, "search_space.pooling_layers"),
        (
            {
                "training": {"pooling_layers": 3},
                "search_space": {
                    "swa_epochs": {"type": "categorical", "choices": [0, 2]},
                    "pooling_layers": {"type": "int", "low": 1, "high": 2, "when": {"swa_epochs": 2}},
                },
            },
            "training.pooling_layers",
        ),
        ({"training": {"pooling": "pair"}}, "training.pooling"),
        ({"training": {"pooling": "cls"}}, "training.pooling"),
        ({"training": {"activation_checkpointing": True}}, "training.activation_checkpointing"),
        ({"training": {"stages": [{}, {"mixout": 0.1}]}}, "training.stages.1.mixout"),
        ({"search_space": {"mixout": {"type": "uniform", "low": 0, "high": 0.5}}}, "search_space.mixout"),
        ({"training": {"adapter": "lora"}}, "training.adapter"),
        ({"training": {"fp16": True, "freeze_encoder": True}}, "training.fp16"),
        ({"training": {"adversarial": "fgm", "freeze_encoder": True}}, "training.adversarial"),
        ({"training": {"bf16": False}, "search_space": {"bf16": ON}}, "search_space.bf16"),
        (
            {
                "training": {"activation_checkpointing": True, "stages": [{"freeze_encoder": True}, {}]},
                "search_space": {"stages.1.activation_checkpointing": {**ON, "when": {"stages.1.freeze_encoder": True}}}
                | {"stages.1.freeze_encoder": ON},
            },
            ["search_space.stages.1.activation_checkpointing", "training.activation_checkpointing"],
        ),
    ],
)
def test_what_is_beyond_the_backbone_is_refused_before_a_trial_is_made(changes, key):
    with pytest.raises(ConfigError) as caught:
        check_backbone(study(**changes), LITTLE, begun=False)
    assert [fault.what for fault in caught.value.faults] == ([key] if isinstance(key, str) else key)
    check_backbone(study(**changes), MUCH, begun=False)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"pooling": "cls"}, "training.pooling must not be cls with the decoder .*, whose first token sees no other"),
        (
            {"adapter": "lora", "lora_targets": "query"},
            r"training.lora_targets must name linear layers .*: q_proj; got",
        ),
        ({"head": "verbalizer", "words": {0: "w1 w2"}}, "training.words must be one token of the backbone each; got"),
        ({"head": "verbalizer"}, "training.words must be there with `head: verbalizer`: one for each class; got none"),
    ],
)
def test_what_a_decoder_cannot_do_is_refused_before_a_trial_is_made(tmp_path, training, message):
    save_decoder(tmp_path)
    decoder = replace(MUCH, decoder=True, linear_names=frozenset(["q_proj"]))
    with pytest.raises(ConfigError, match=message):
        check_backbone(study(backbone=str(tmp_path), training=training), decoder, begun=False)


def test_a_backbone_of_the_search_space_is_checked_with_the_keys_that_its_trials_draw():
    space = {"backbone": {"type": "categorical", "choices": ["bert", "qwen"]}}
    space["pooling"] = {"type": "categorical", "choices": ["cls"], "when": {"backbone": "bert"}}
    space["learning_rate"] = {"type": "log_uniform", "low": 1e-5, "high": 1e-4}
    alone = by_backbone(study(search_space=space))
    assert [*alone] == ["bert", "qwen"]
    assert [*alone["bert"].search_space.root] == ["pooling", "learning_rate"]
    assert [*alone["qwen"].search_space.root] == ["learning_rate"]
    check_backbone(alone["qwen"], replace(LITTLE, decoder=True), begun=False)
    with pytest.raises(ConfigError, match=r"search_space\.pooling must not be cls"):
        check_backbone(alone["bert"], LITTLE, begun=False)


def test_a_study_that_began_before_an_option_was_refused_can_go_on():
    config = study(training={"mixout": 0.5})
    check_backbone(config, LITTLE, begun=True)
    with pytest.raises(ConfigError):
        check_backbone(config, LITTLE, begun=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"activation_checkpointing": False, "mixout": 0, "adapter": None}},
        {"training": {"bf16": False, "fp16": False, "adversarial": "awp"}},
        {"training": {"mixout": 0.1}, "search_space": {"mixout": {"type": "categorical", "choices": [0]}}},
        {"training": {"activation_checkpointing": True, "freeze_encoder": True}},
        {"training": {"activation_checkpointing": True, "stages": [{"activation_checkpointing": False}]}},
        {
            "training": {"activation_checkpointing": True},
            "search_space": {"activation_checkpointing": {"type": "categorical", "choices": [False]}},
        },
    ],
)
def test_what_no_trial_switches_on_is_not_refused(changes):
    check_backbone(study(**changes), LITTLE, begun=False)


@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"training": {"pooling": "pair"}}, "training.pooling"),
        ({"search_space": {"pooling": {"type": "categorical", "choices": ["mean", "pair"]}}}, "search_space.pooling"),
    ],
)
def test_a_pooling_of_pairs_needs_a_task_that_has_some(tmp_path, changes, key, pair):
    file = tmp_path / "train.csv"
    second = "another\t" if pair else ""
    file.write_text("".join(f"{row}\ttext {row}\t{second}{row % 2}\n" for row in range(40)))
    task = {"layout": "competition", "train": str(file), "pair": pair}
    folder = StudyFolder(tmp_path / "s")
    if pair:
        assert prepare_rows(study(**changes, tasks={"a": task}), folder).tasks[0].pair
        return
    with pytest.raises(
        ConfigError, match=rf"{key} must be for single texts where no task has pairs.*; got pair; use mean"
    ):
        prepare_rows(study(**changes, tasks={"a": task}), folder)


def test_a_second_process_on_the_same_study_is_refused(tmp_path):
    folder = StudyFolder(tmp_path / "tiny")
    with study_lock(folder):
        assert is_running(folder)
        with pytest.raises(StudyError, match="one process at a time"), study_lock(folder, patience=0):
            pass
    assert not is_running(folder)


def test_who_holds_a_study_is_named_and_one_that_died_is_not(tmp_path, monkeypatch):
    folder = StudyFolder(tmp_path / "tiny")
    folder.path.mkdir()
    (folder.path / "study.lock").write_text("somebody@far-away (process 1234567), who died\x1b[2J")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu1")
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    got = f"got ann@gpu1 (process {os.getpid()}) holding {folder.path / 'study.lock'}; wait"
    with study_lock(folder), pytest.raises(StudyError, match=re.escape(got)), study_lock(folder, patience=0):
        pass
    with FileLock(folder.path / "study.lock"):  # as another program holds it, which writes nothing
        (folder.path / "study.lock").write_bytes(b"\x1b[2J\xff")
        with pytest.raises(StudyError, match=re.escape("got [2J\ufffd holding")), study_lock(folder, patience=0):
            pass
        (folder.path / "study.lock").write_text("")
        with pytest.raises(StudyError, match="got another process holding"), study_lock(folder, patience=0):
            pass


def test_a_folder_that_nobody_may_write_to_is_said_in_one_sentence(tmp_path, monkeypatch):
    def refuse(path, *given, **named):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    folder = StudyFolder(tmp_path / "tiny")
    folder.path.mkdir()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match="ask for write permission"), study_lock(folder, patience=0):
        pass


def test_whether_a_study_is_run_is_told_of_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(FileLock, "acquire", lambda *given, **named: pytest.fail("it would write"))
    folder = StudyFolder(tmp_path / "tiny")
    assert not is_running(folder)
    folder.path.mkdir()
    with (folder.path / "study.lock").open("wb") as held:
        assert not is_running(folder)
        fcntl.flock(held, fcntl.LOCK_EX)
        (folder.path / "study.lock").chmod(0o444)
        assert is_running(folder)
    assert not is_running(folder)


def test_who_looks_whether_a_study_is_run_keeps_nobody_from_looking_too(tmp_path):
    folder = StudyFolder(tmp_path / "tiny")
    with study_lock(folder):
        pass
    with (folder.path / "study.lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not is_running(folder)


def resumed(config, folder, store, tracker):
    """What a run of a study without a Ray says, for it has nothing left to train."""
    with closing(store):
        return run_study(
            config,
            folder,
            store=store,
            tracker=tracker,
            concurrent_trials=1,
            tags={},
            watch=lambda: None,
            picture=lambda task, predictions: task.encode(),
            notify=print,
        )


def test_trials_not_told_of_the_target_before_a_driver_died_are_told_when_it_is_resumed(tmp_path):
    config, folder, tracker = study(search={"target_score": 0.8}), StudyFolder(tmp_path / "s"), MemoryTracker()
    folder.path.mkdir()
    store = StudyStore.open(folder.optuna_url, name="s", space=config.search_space, sampler="random", seed=0)
    first, second = store.ask(), store.ask()
    store.finish(first.key, state=TrialState.FINISHED, score=0.9)
    store.report(second.key, epoch=1, score=0.5, task_scores={})
    tracker.start_study(parameters={}, tags={}, files=[])
    done = resumed(config, folder, store, tracker)
    assert [trial.state for trial in done.trials] == [TrialState.FINISHED, TrialState.STOPPED]
    assert "the study needs it no more: t0000 has reached the score 0.8" in done.trials[1].reason
    assert done.interrupted == ()
    assert tracker.runs["t0001"].state is TrialState.STOPPED


def test_pictures_that_a_killed_driver_owed_are_drawn_when_a_study_with_nothing_to_run_is_resumed(tmp_path):
    config, folder, tracker = study(search={"trials": 2}), StudyFolder(tmp_path / "s"), MemoryTracker()
    folder.path.mkdir()
    store = StudyStore.open(folder.optuna_url, name="s", space=config.search_space, sampler="random", seed=0)
    labelled = {"ids": np.array(["a"]), "labels": np.array([1]), "names": ("n", "y")}
    predictions = Predictions(outputs=np.full((1, 2), 0.5, np.float32), **labelled)
    tracker.start_study(parameters={}, tags={}, files=[])
    for number in range(2):
        key = store.ask().key
        Bank(folder.bank).put(CheckpointRecord(key, number, 1, 0.9, {}, None), {"mood": {"validation": predictions}})
        store.finish(key, state=TrialState.FINISHED, score=0.9)
        tracker.start_trial(key, number=number, parameters={}, tags={})
        folder.trial(key).path.mkdir(parents=True)
    folder.trial("t0001").pictures_owed.touch()  # as a driver leaves it that dies before it has drawn them
    assert resumed(config, folder, store, tracker).complete
    assert tracker.runs["t0000"].pictures == {}
    assert tracker.runs["t0001"].pictures == {"confusion_matrix/mood": b"mood"}
    assert not folder.trial("t0001").pictures_owed.exists()


def test_trials_a_killed_driver_left_running_are_interrupted_where_the_hours_are_over(tmp_path):
    config, folder, tracker = study(search={"max_hours": 1.0}), StudyFolder(tmp_path / "s"), MemoryTracker()
    folder.path.mkdir()
    store = StudyStore.open(folder.optuna_url, name="s", space=config.search_space, sampler="random", seed=0)
    left = store.ask()
    store.keep_run_seconds(3600.0)
    tracker.start_study(parameters={}, tags={}, files=[])
    tracker.start_trial(left.key, number=0, parameters={}, tags={})
    done = resumed(config, folder, store, tracker)
    assert done.interrupted == (left.key,)
    assert done.ending is not None
    assert done.ending.limit == "max_hours"
    assert tracker.runs[left.key].state is TrialState.INTERRUPTED
    assert tracker.runs[left.key].reason == "the study ended: its trials have run for 1 h"


def test_a_study_whose_trials_have_all_failed_is_an_error_with_the_first_reason(tmp_path):
    config, folder = study(search={"trials": 1}), StudyFolder(tmp_path / "s")
    folder.path.mkdir()
    store = StudyStore.open(folder.optuna_url, name="s", space=config.search_space, sampler="random", seed=0)
    store.finish(store.ask().key, state=TrialState.FAILED, reason="the loss of step 3 is not finite")
    with pytest.raises(TrialError, match=r"at least one trial that finishes; got 1 failed, .* the loss of step 3"):
        resumed(config, folder, store, MemoryTracker())


@pytest.mark.parametrize(("address", "grows"), [(None, False), ("head:6379", True)])
def test_workers_wait_for_nodes_only_of_a_cluster_that_somebody_else_started(tmp_path, monkeypatch, address, grows):
    class Made(Exception):
        pass

    def made(*given, **named):
        raise Made(named)

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(pool, "PoolJob", made)
    pools = pool.running_pools(study(), StudyFolder(tmp_path / "s"), count=1, train=print, population=None)
    with pytest.raises(Made) as caught, pools:
        pass
    assert caught.value.args[0]["grows"] is grows


def test_folders_of_trials_that_the_database_has_lost_are_not_gone_on_from(tmp_path):
    folder = StudyFolder(tmp_path / "s")
    for key in ("t0000", "t0001", "t0002.bak", "tensorboard"):
        folder.trial(key).path.mkdir(parents=True)
    known = [TrialRecord("t0000", 0, TrialState.FINISHED)]
    _check_folders(folder, [*known, TrialRecord("t0001", 1, TrialState.RUNNING)])
    with pytest.raises(StudyError, match="must hold only folders of the 1 trial that its database has; got t0001"):
        _check_folders(folder, known)


def test_predictions_that_a_dying_worker_added_after_its_trial_s_end_do_not_vote(tmp_path):
    folder = StudyFolder(tmp_path / "s")
    bank = Bank(folder.bank)
    states = [TrialState.RUNNING, TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED, TrialState.INTERRUPTED]
    trials = [TrialRecord(f"t{number:04d}", number, state) for number, state in enumerate(states)]
    for trial in trials:
        bank.put(CheckpointRecord(trial.key, trial.number, 1, 0.8, {"a": 0.8}, None), {})
        folder.trial(trial.key).resume.mkdir(parents=True)
    clear_ended(folder, trials)
    assert [record.key for record in bank.records()] == ["t0000", "t0001", "t0004"]
    assert [trial.state for trial in trials if folder.trial(trial.key).resume.is_dir()] == [TrialState.RUNNING]


def test_a_driver_whose_study_another_one_has_taken_over_tells_the_tracker_of_no_end(tmp_path, monkeypatch):
    config, folder, tracker = study(search={"max_hours": 1.0}), StudyFolder(tmp_path / "s"), MemoryTracker()
    folder.path.mkdir()
    store = StudyStore.open(folder.optuna_url, name="s", space=config.search_space, sampler="random", seed=0)
    left, unfinished, closed = store.ask(), [store.unfinished()], []
    store.keep_run_seconds(3600.0)
    tracker.start_study(parameters={}, tags={}, files=[])
    tracker.start_trial(left.key, number=0, parameters={}, tags={})

    def lost() -> list:
        if unfinished:
            return unfinished.pop()
        raise ClaimLostError(Fault("the study 's'", "be run by one process at a time", "another one", "wait"))

    monkeypatch.setattr(store, "unfinished", lost)
    close = StudyLog.close
    monkeypatch.setattr(StudyLog, "close", lambda log: [closed.append(log), close(log)])
    with pytest.raises(ClaimLostError, match="one process at a time"):
        resumed(config, folder, store, tracker)
    assert tracker.runs[left.key].state is TrialState.RUNNING
    assert len(closed) == 1
