"""What a pool's worker does, without Ray."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

from tutti.config.folder import StudyFolder
from tutti.config.space import SearchSpace
from tutti.config.study import StudyConfig
from tutti.errors import ClusterError, StorageError
from tutti.orchestration.broker.failure_kind import Failure
from tutti.orchestration.driver import relay
from tutti.orchestration.driver.relay import PoolWatch
from tutti.orchestration.worker import pool
from tutti.orchestration.worker.nodes import Probe
from tutti.orchestration.worker.pool import PoolHost, PoolJob, reason_of

PROBE = Probe(Path("probe"), b"")


def test_a_worker_s_failure_is_told_in_one_line_with_its_rank():
    failures = {1: ValueError("later"), 0: OSError("Traceback\n  at line 3\nno space left on device\n")}
    assert reason_of(failures) == "worker 0: OSError: no space left on device"
    assert reason_of({2: KeyError()}) == "worker 2: KeyError: KeyError"
    assert len(reason_of({0: ValueError("x" * 5000)})) == 500


@pytest.mark.parametrize(
    ("optimizer", "gpus", "isolation", "warm"),
    [
        ("adamw_torch", 1, "auto", True),
        ("paged_adamw_32bit", 1, "auto", False),  # bitsandbytes never frees what it holds
        ("paged_adamw_32bit", 0, "auto", True),  # and pages nothing on a CPU
        ("paged_adamw_32bit", 1, "warm", True),
        ("adamw_torch", 0, "isolated", False),
    ],
)
def test_workers_stay_for_the_next_trial_unless_they_would_keep_its_memory(tmp_path, optimizer, gpus, isolation, warm):
    study = StudyConfig.model_validate(
        {
            "study": "s",
            "backbone": "b",
            "tasks": {"a": {"layout": "competition", "train": "/x"}},
            "search_space": {"optim": {"type": "categorical", "choices": [*dict.fromkeys(["adamw_torch", optimizer])]}},
            "resources": {"isolation": isolation, "gpus_per_worker": gpus},
        }
    )
    assert PoolJob(study, StudyFolder(tmp_path / "s"), train=lambda: None, grows=False, probe=PROBE).warm is warm
    in_a_stage = {"stages": [{"optim": optimizer}, {}]}
    staged = study.model_copy(update={"search_space": SearchSpace(), "training": in_a_stage})
    assert PoolJob(staged, StudyFolder(tmp_path / "s"), train=lambda: None, grows=False, probe=PROBE).warm is warm


class Desk:
    """A broker whose study is over after so many runs of workers; keeps what it is told."""

    def __init__(self, runs: int) -> None:
        self.runs, self.failures, self.notices = runs, [], []

    def is_over(self) -> bool:
        self.runs -= 1
        return self.runs < 0

    def placement_groups(self, pool: str) -> list[Any]:
        return []

    def report_loss(self, _: str, failure: Failure) -> bool:
        if failure.reason != "the host of its workers died":  # its first word, in case it did
            self.failures.append(failure)
        return False

    def blind_nodes(self) -> dict[str, str]:
        return {}

    def post_notice(self, text: str) -> None:
        self.notices.append(text)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return SimpleNamespace(remote=found) if callable(found) else found


NO_ROOM = ControllerError(WorkerGroupStartupTimeoutError(num_workers=2))


@pytest.fixture
def host(monkeypatch, tmp_path):
    """Runs a host whose workers fail, for they find no room or otherwise; what it returns, and its broker."""

    class Failing:
        error: BaseException

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def fit(self) -> None:
            raise self.error

    for name in ("TRAIN_HEALTH_CHECK_INTERVAL_S", "TRAIN_ENABLE_PREEMPTION_WATCHER", "CHDIR_TO_TRIAL_DIR"):
        monkeypatch.setenv(f"RAY_{name}", "")
    monkeypatch.setattr("tutti.orchestration.worker.worker_group.WorkerGroup", Failing)
    monkeypatch.setattr(ray, "get", lambda results: results)
    monkeypatch.setattr(pool.time, "sleep", lambda seconds: None)
    task = {"layout": "competition", "train": "/x"}
    resources = {"workers": 2, "cpus_per_worker": 4, "gpus_per_worker": 1}
    settings = {"study": "s", "backbone": "b", "tasks": {"a": task}, "resources": resources, "search": {"retries": 2}}
    study = StudyConfig.model_validate(settings)

    def run(*, grows: bool, runs: int, error: BaseException = NO_ROOM) -> tuple[str | None, Desk]:
        Failing.error = error
        desk: Any = Desk(runs)
        job = PoolJob(study, StudyFolder(tmp_path / "s"), train=lambda: None, grows=grows, probe=PROBE)
        return PoolHost().run("pool-0", job, desk), desk

    return run


def test_workers_wait_for_nodes_that_may_be_added_however_long_that_takes_and_say_for_what(host):
    reason, desk = host(grows=True, runs=20)
    assert (reason, desk.failures) == (None, [])
    waits = "waits for nodes: the cluster has no room yet for workers: 2, each with 4 CPUs and 1 GPUs"
    assert {text.partition(" (")[0] for text in desk.notices} == {waits}


def test_workers_that_find_no_room_where_none_can_be_added_give_up_with_the_reason(host):
    reason, desk = host(grows=False, runs=20)
    assert reason.startswith("WorkerGroupStartupTimeoutError: ")
    assert (len(desk.failures), desk.notices) == (3, [])


def test_workers_that_are_given_up_while_others_train_are_told_of_and_end_nothing(monkeypatch, tmp_path):
    broker: Any = Desk(0)
    broker.halt_fault = lambda: None
    monkeypatch.setattr(ray, "get", lambda ref: ref)
    pools: Any = SimpleNamespace(hosts=["first", "second", "third"], ended=lambda: [None, "no GPU"])
    PoolWatch(broker, pools, StudyFolder(tmp_path), print).check()
    [notice] = broker.notices
    assert "could not start and stay (no GPU)" in notice


@pytest.fixture
def begun(tmp_path) -> StudyFolder:
    folder = StudyFolder(tmp_path / "study")
    folder.path.mkdir()
    folder.study_file.touch()
    return folder


@pytest.fixture
def watch(monkeypatch, begun) -> PoolWatch:
    """Of a begun study whose pools are all well."""
    broker: Any = SimpleNamespace(
        halt_fault=SimpleNamespace(remote=lambda: None), blind_nodes=SimpleNamespace(remote=dict)
    )
    monkeypatch.setattr(ray, "get", lambda ref: ref)
    return PoolWatch(broker, cast(Any, SimpleNamespace(hosts=["first"], ended=list)), begun, print)


def test_a_broker_that_is_out_of_reach_for_a_moment_ends_no_study_and_one_that_has_died_does(monkeypatch, watch):
    def get(ref: Any) -> Any:
        raise errors.pop(0)

    errors: list[Exception] = [ActorUnavailableError("no answer", b"1" * 16), ActorDiedError()]
    monkeypatch.setattr(ray, "get", get)
    watch.check()
    with pytest.raises(ClusterError, match="the study's workers must start and stay"):
        watch.check()


def test_each_node_that_does_not_see_the_folder_is_told_of_once(capsys, watch, begun):
    blind = {"a": "10.0.0.1"}
    watch._broker.blind_nodes.remote = lambda: blind
    watch.check()
    blind["b"] = "10.0.0.2"
    watch.check()
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" does not see ")[0] for line in said] == ["the node 10.0.0.1", "the node 10.0.0.2"]


@pytest.fixture
def look(monkeypatch, begun, watch) -> Callable[[float, int | None], None]:
    """Lets a study look at its folder so many seconds after its start, with an error of the file system or none."""
    stat = Path.stat

    def check(seconds: float, number: int | None) -> None:
        def answer(path: Path, **given: Any) -> os.stat_result:
            if number and path == begun.study_file:
                raise OSError(number, os.strerror(number), str(path))
            return stat(path, **given)

        monkeypatch.setattr(Path, "stat", answer)
        monkeypatch.setattr(relay, "time", SimpleNamespace(monotonic=lambda: seconds))
        watch.check()

    return check


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EACCES])
def test_a_file_system_that_fails_for_a_moment_ends_no_study(look, number):
    for seconds in (1, 50):
        look(seconds, number)
    look(55, None)
    for seconds in (70, 129):  # each failure counts from its own beginning
        look(seconds, number)
    with pytest.raises(StorageError):
        look(130, number)


def test_a_file_system_that_fails_for_a_minute_ends_the_study_with_one_sentence(look, begun):
    look(1, errno.EIO)
    look(30, errno.ESTALE)
    with pytest.raises(StorageError) as ended:
        look(61, errno.ESTALE)
    expected = f"{begun.study_file} must stay readable while the study runs; got Stale file handle; see to its file"
    assert str(ended.value) == f"{expected} system, and go on with --resume: no trial is lost."


def test_a_study_whose_folder_is_moved_away_halts_before_its_trials_fail(tmp_path, begun, watch):
    watch.check()
    begun.path.rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"study must stay where it is while the study runs; got no study"):
        watch.check()


STARVED, KILLED = MemoryError("no memory"), OutOfMemoryError("the node ran low on memory")


@pytest.mark.parametrize(
    ("failures", "memory"),
    [
        ({0: STARVED}, (True, False)),
        ({0: KILLED, 1: OSError("gone")}, (True, True)),
        ({0: KILLED, 1: STARVED}, (True, False)),
        ({0: OSError("gone")}, (False, False)),
    ],
)
def test_workers_that_ray_ended_for_their_node_are_told_from_those_that_asked_for_too_much(host, failures, memory):
    _, desk = host(grows=False, runs=1, error=WorkerGroupError("two failed", failures))
    assert [(each.out_of_memory, each.for_its_node) for each in desk.failures] == [memory]


def test_each_trial_has_the_float32_precision_that_it_asks_for_whatever_those_before_it_did():
    import torch
    from transformers.utils.import_utils import enable_tf32

    before, seen = torch.backends.fp32_precision, []
    for wanted in (True, False, None, True):
        with pool._clean_process():
            if wanted is not None:
                enable_tf32(wanted)
            seen.append(torch.backends.fp32_precision)
    assert seen == ["tf32", "ieee", before, "tf32"]
    assert torch.backends.fp32_precision == before


def test_a_worker_keeps_what_the_user_has_set_for_tokenizers(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    monkeypatch.setattr(ray, "get", lambda result: result)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    seen = SimpleNamespace(is_seen=lambda: True)
    job = SimpleNamespace(study=SimpleNamespace(resources=SimpleNamespace(cpus_per_worker=1, workers=1)), probe=seen)
    over = SimpleNamespace(take=SimpleNamespace(remote=lambda name: None))
    pool.train_trials({"pool": "pool-0", "job": job, "broker": over})
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
