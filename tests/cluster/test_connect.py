"""How many trials fit a cluster, and what is refused."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread

import psutil
import pytest
import ray

from tutti.cluster import connect
from tutti.cluster.connect import check_cluster, connected
from tutti.config.study import Resources
from tutti.errors import ClusterError, ResourcesError, UserError


@pytest.fixture(autouse=True)
def token(monkeypatch):
    """A user's own token, so that none is left in the environment of other tests."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t" * 40)


def test_a_cluster_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "no port here")
    with pytest.raises(ClusterError, match="Ray at no port here must answer"), connected(Resources()):
        pass


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "http://10.0.0.1:8265"])
def test_an_address_of_another_kind_than_a_head_s_is_told_with_what_to_use_instead(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=rf"be HOST:PORT of a cluster's head, .*; got '{address}'; .*`tutti submit"):
        check_cluster()


@pytest.mark.parametrize(
    ("answers", "got"),
    [
        (None, "Connection refused"),
        (b"", "no answer within 0.5 s"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "Failed parsing HTTP/2 .*"),
    ],
)
def test_a_port_that_is_no_cluster_s_is_told_within_seconds(monkeypatch, answers, got):
    monkeypatch.setattr(connect, "_ANSWER_SECONDS", 0.5)
    kept: list[socket.socket] = []  # open
    with socket.socket() as server:
        server.bind(("", 0))  # Ray takes 127.0.0.1 for the address that other nodes see
        if answers is not None:
            server.listen()

            def answer():
                kept.append(server.accept()[0])
                kept[0].sendall(answers)

            Thread(target=answer, daemon=True).start()
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(ClusterError, match=rf"Ray at 127.0.0.1:\d+ must answer; got {got}; check that the cluster"):
            check_cluster()


def test_a_folder_whose_path_is_too_long_for_ray_is_told_with_what_to_set(monkeypatch):
    def refuse(address: str | None) -> None:
        raise OSError("validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /scratch/...")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(connect, "_start", refuse)
    with (
        pytest.raises(ClusterError, match=r"AF_UNIX path length .*; set RAY_TMPDIR to a folder with a short path"),
        connected(Resources()),
    ):
        pass


def test_a_folder_in_which_ray_may_not_write_is_told_with_what_to_set(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "file"))
    with (
        pytest.raises(ClusterError, match=r"got .*Not a directory.*; set RAY_TMPDIR to a folder .* you may write"),
        connected(Resources()),
    ):
        pass


@pytest.mark.parametrize(("failures", "begins"), [(1, True), (2, False)])
def test_a_ray_of_our_own_that_did_not_start_in_time_is_started_once_more(monkeypatch, failures, begins):
    began = []

    def slow(**given: object) -> None:
        began.append(given["address"])
        if len(began) <= failures:
            raise Exception("The current node timed out during startup.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", slow)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    trials = connected(Resources())
    if begins:
        with trials as fits:
            assert fits == 2
    else:
        with pytest.raises(ClusterError, match="a Ray on this machine must answer; got The current"), trials:
            pass
    assert began == ["local", "local"]


@pytest.mark.parametrize(
    ("address", "room", "limit", "autoscaled_to", "yielded"),
    [
        ("10.0.0.1:6379", 0, 3, None, 3),
        ("10.0.0.1:6379", 0, None, 4, 4),
        ("10.0.0.1:6379", 6, None, 4, 6),
        ("10.0.0.1:6379", 6, None, None, 6),
        ("10.0.0.1:6379", 0, None, None, None),
        (None, 6, None, 4, 6),
        (None, 0, 3, 4, None),
    ],
)
def test_only_a_cluster_that_grows_may_have_no_room_yet(monkeypatch, address, room, limit, autoscaled_to, yielded):
    monkeypatch.setattr(connect, "_start", lambda address: None)
    monkeypatch.setattr(connect, "check_cluster", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": float(room)}}])
    connection = connected(Resources(concurrent_trials=limit), autoscaled_to=autoscaled_to)
    if yielded is None:
        with pytest.raises(ResourcesError, match="resources must fit the Ray cluster"), connection:
            pass
    else:
        with connection as count:
            assert count == yielded


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_workers_have_their_environment_from_a_ray_of_our_own_and_a_cluster_s_from_the_job(monkeypatch, address):
    name, value = "THP_MEM_ALLOC_ENABLE", "1"
    seen = {}

    def begin(**given: object) -> None:
        seen["inherited"] = os.environ.get(name)
        seen["job"] = given.get("runtime_env")

    for unset in (*connect.TORCH_ENVIRONMENT, "HF_HUB_DISABLE_PROGRESS_BARS", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.delenv(unset, raising=False)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    monkeypatch.setattr(ray, "init", begin)
    connect._start(address)
    asked = {
        **connect.TORCH_ENVIRONMENT,
        "TOKENIZERS_PARALLELISM": "true",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
        "PYTHONSAFEPATH": "1",
        "MPLBACKEND": "agg",
        "RAY_TRAIN_V2_ENABLED": "1",
    }
    expected = {"inherited": None, "job": {"env_vars": asked}} if address else {"inherited": value, "job": None}
    assert seen == expected
    assert name not in os.environ
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


def test_compiled_products_are_limited_except_with_amx_where_compiling_them_anew_is_slow():
    assert connect._compiled_products({"avx2", "avx512_bf16"})["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "96"
    assert connect._compiled_products({"avx512_bf16", "amx_bf16", "amx_tile"}) == {}
    assert connect._processor_flags() or not Path("/proc/cpuinfo").exists()


@pytest.mark.parametrize(("address", "given"), [(None, 3), ("10.0.0.1:6379", None)])
def test_only_a_ray_of_our_own_is_told_how_many_cpus_it_has(monkeypatch, address, given):
    begun = {}
    monkeypatch.setattr(ray, "init", begun.update)
    monkeypatch.setattr(connect, "private_cpus", lambda: 3)
    connect._start(address)
    assert begun["num_cpus"] == given


@pytest.mark.usefixtures("takes_ctrl_c")
def test_sigterm_is_ctrl_c_while_ray_starts_and_while_it_is_connected(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(connect, "_start", lambda address: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt), connected(Resources()):
        raise AssertionError("nothing runs without Ray")
    monkeypatch.setattr(connect, "_start", lambda address: None)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 1.0}}])
    with pytest.raises(KeyboardInterrupt), connected(Resources()):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_ray_s_own_answer_to_sigterm_while_it_starts_is_ctrl_c(monkeypatch):
    monkeypatch.setattr(connect, "_start", lambda address: sys.exit(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt), connected(Resources()):
        raise AssertionError("nothing runs without Ray")


@pytest.mark.usefixtures("takes_ctrl_c")
def test_a_ray_that_was_interrupted_while_it_starts_is_not_started_again(monkeypatch):
    began = []

    def slow(**given: object) -> None:
        began.append(given["address"])
        signal.raise_signal(signal.SIGINT)
        raise Exception("The current node timed out during startup.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", slow)
    with pytest.raises(KeyboardInterrupt), connected(Resources()):
        raise AssertionError("nothing runs without Ray")
    assert began == ["local"]


def test_workers_have_the_python_of_a_driver_that_uv_runs(tmp_path):
    code = """
from tutti.cluster import connect
from tutti.config.study import Resources

def start(address):
    from ray._private import worker
    print("environment:", worker._maybe_modify_runtime_env(None, False))
    raise SystemExit

connect._start_interruptibly = start
with connect.connected(Resources(concurrent_trials=1)):
    pass
"""
    python = shlex.quote(sys.executable)
    (tmp_path / "run").write_text(f"{python} -c {shlex.quote(code)}; exit 0")  # a last command would take bash's place
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    uv_run = ["bash", "-c", "exec -a uv bash run"]  # a process with the command line of `uv run`
    run = subprocess.run(uv_run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == "environment: None\n", run.stderr


def test_variables_for_an_older_tune_or_train_reach_neither_the_driver_nor_its_workers(monkeypatch):
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "0")
    monkeypatch.setenv("TUNE_RESULT_DIR", "/results")
    monkeypatch.setenv("RAY_AIR_LOCAL_CACHE_DIR", "/results")
    monkeypatch.setenv("RAY_ADDRESS", "http://10.0.0.1:8265")
    with pytest.raises(UserError), connected(Resources()):
        pass
    assert not {"TUNE_RESULT_DIR", "RAY_AIR_LOCAL_CACHE_DIR"} & os.environ.keys()
    assert os.environ["RAY_TRAIN_V2_ENABLED"] == connect.worker_environment()["RAY_TRAIN_V2_ENABLED"] == "1"


def test_of_what_ray_prints_the_dumps_of_a_lost_node_alone_are_left_out(capsys):
    from ray._private import worker

    dump = "The node with node id: 1 has been marked dead because the detector has missed too many heartbeats from it."
    with connect._dumps_left_out():
        for text in (dump, "Raylet is terminated. Termination is unexpected.\n  [state-dump]", "No room"):
            worker.print_to_stdstream({"lines": [text], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    out = capsys.readouterr().out
    assert "No room" in out
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize("running", [True, False])
def test_a_ray_that_was_started_on_this_machine_is_told_unless_it_is_the_one_in_use(monkeypatch, running):
    def answer(place: str) -> None:
        if not running:
            raise ConnectionError

    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda folder: "10.0.0.1:6379")
    monkeypatch.setattr(connect, "_call", answer)
    assert connect._running_here() == ("10.0.0.1:6379" if running else None)


def test_a_ray_is_gone_once_several_of_its_processes_have_ended():
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        daemons = [psutil.Process(process.pid) for process in (first, second)]
        first.kill()
        first.wait()
        assert not connect._is_gone(daemons)
        second.kill()
        os.waitid(os.P_PID, second.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
        assert connect._is_gone(daemons)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("private", [True, False])
def test_workers_import_nothing_from_the_current_folder_that_the_driver_does_not(tmp_path, private):
    for name in ("datasets", "evaluate", "emoji", "random"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "torch").mkdir()
    code = f"""
import os, ray
from tutti.cluster.connect import connected
from tutti.config.study import Resources

@ray.remote
def imported():
    import emoji, os, random, subprocess, sys
    child = subprocess.check_output([sys.executable, "-c", "import random; print(random.__file__)"], text=True)
    return os.getcwd() in sys.path, [emoji.__file__, random.__file__, child.strip(), os.environ["MPLBACKEND"]]

if not {private}:
    from ray.cluster_utils import Cluster
    os.environ["RAY_ADDRESS"] = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1}}).address
with connected(Resources(concurrent_trials=1)):
    print(*ray.get(imported.remote()), sep="\\n")
"""
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    environment.pop("RAY_ADDRESS", None)
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "False" in run.stdout
    assert "agg" in run.stdout
    assert str(tmp_path) not in run.stdout
