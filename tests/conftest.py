"""The command ``tutti`` as a process of its own, the studies, backbones and servers that it runs on, and real data."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "cli"))  # its helpers serve a script too, so they are no plugin
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import tiny_study
from postgres_server import Postgres, postgres_programs
from running_command import Running
from s3_server import S3, running_s3
from tiny_study import Finished, Study
from word_backbone import save_bert, save_tokenizer

# A busy one takes longer than 200 ms now and then; further examples hardly ever find what these do not.
settings.register_profile("any machine", deadline=None, max_examples=40)
settings.load_profile("any machine")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the hub; its library reads this once, when it is imported


@pytest.fixture
def takes_ctrl_c() -> Iterator[None]:
    """Restores Python's handler of SIGINT, which pytest-xdist's workers ignore."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def takes_hangup() -> Iterator[None]:
    """Restores the default of SIGHUP, which nohup makes the tests ignore, and which ends no test but all of them."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.fixture(autouse=True, scope="module")
def collect_quickly() -> None:
    """Lets collections pass over what was imported, as workers do: they took half of the tests' processor time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tutti_command(tmp_path_factory) -> Iterator[Callable[..., Running]]:
    """Starts any command (by default ``python -m tutti``) and ends what is left of it after the tests."""
    started: list[Running] = []

    def start(*arguments: object, **options: Any) -> Running:
        started.append(Running.start(*arguments, folder=tmp_path_factory.mktemp("command"), **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="session")
def tutti(tutti_command) -> Callable[..., str]:
    """Runs ``tutti`` to its end and returns its output; the exit code must be the one expected."""

    def run(*arguments: object, code: int = 0, seconds: float = 500, **options: Any) -> str:
        running = tutti_command(*arguments, **options)
        assert running.wait(seconds) == code, running.output
        return running.output

    return run


@pytest.fixture
def interrupt() -> Callable[[Running], None]:
    """What Ctrl-C in a terminal does: SIGINT to the whole process group."""
    return lambda running: os.killpg(running.process.pid, signal.SIGINT)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    """Two tasks in the competition layout, a single one and a pair, and a random backbone without dropout."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_study.write_data(folder)
    return folder


@pytest.fixture(scope="session")
def make_study(tiny_data) -> Callable[..., Study]:
    """Writes the tiny study below a folder, with changes by dotted key, and leaves its data where they are."""
    return lambda folder, **changes: tiny_study.write_study(folder, tiny_data, **changes)


@pytest.fixture(scope="session")
def finished(tutti_command, make_study, tmp_path_factory) -> Finished:
    """The tiny study, tuned once for all tests that only look at it."""
    study = make_study(tmp_path_factory.mktemp("finished"))
    running = tutti_command("tune", study.file)
    assert running.wait() == 0, running.output
    return Finished(study, running.output, running.left_behind())


@pytest.fixture(scope="session")
def backbone(tmp_path_factory) -> Path:
    """A tiny random BERT with a word-level tokenizer, saved to a folder; half of its embedding rows are unused."""
    folder = tmp_path_factory.mktemp("backbone")
    save_tokenizer(folder, [f"w{number}" for number in range(60)])
    save_bert(folder, rows=128)
    return folder


@pytest.fixture
def shared_data() -> Path:
    """The real data sets, which lie beside the repository on some machines."""
    folder = Path(__file__).parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data sets are not beside the repository")
    return folder


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """Optuna's tables without a study, to copy: to create them takes longer than most tests."""
    from tutti.search.database import close, open_for_writing

    file = tmp_path_factory.mktemp("optuna") / "optuna.db"
    close(open_for_writing(f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    def free() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return free


@dataclass(frozen=True)
class Cluster:
    """A Ray that was started by ``ray start --head``, of 2 CPUs and of a GPU, as it was told.

    Attributes:
        address: of the dashboard.
        metrics: where Prometheus reads what the head tells.
        folder: with Ray's files.
        env: what a client needs to be let in.
    """

    running: Running
    address: str
    metrics: str
    folder: Path
    env: Mapping[str, str]


@pytest.fixture(scope="session")
def cluster(tutti_command, free_port) -> Iterator[Cluster]:
    """A Ray cluster beside whatever others the machine runs: its ports, its folder and its token are its own."""
    temporary = tempfile.mkdtemp(prefix="ray-")  # the sockets below it must have short paths
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port", "metrics-export-port")
    ports = {name: free_port() for name in names}
    options = [f"--{name}={port}" for name, port in ports.items()]
    options += ["--num-cpus=2", "--num-gpus=1", f"--temp-dir={temporary}", "--disable-usage-stats", "--block"]
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 40}
    running = tutti_command("start", "--head", *options, env=env, command=[str(Path(sys.executable).with_name("ray"))])
    address = f"http://127.0.0.1:{ports['dashboard-port']}"
    header = {"Authorization": f"Bearer {env['RAY_AUTH_TOKEN']}"}

    def answers() -> bool:
        with suppress(requests.exceptions.RequestException):
            return requests.get(f"{address}/api/jobs/", headers=header, timeout=5).ok
        return False

    running.wait_for(answers, what="a dashboard that lists jobs")
    metrics = f"http://127.0.0.1:{ports['metrics-export-port']}/metrics"
    yield Cluster(running, address, metrics, Path(temporary), env)
    running.kill()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3]:
    """An S3-compatible server on loopback."""
    with running_s3() as server:
        yield server


@pytest.fixture
def s3(s3_server, monkeypatch, tmp_path) -> Iterator[S3]:
    """The server, with an address of the test's own, known to clients of this process and of those that it starts."""
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    s3_server.address = f"s3://bucket/{tmp_path.name}/studies"
    yield s3_server
    s3_server.refuses = lambda method, path: False


@pytest.fixture(scope="session")
def postgres(free_port) -> Iterator[Postgres]:
    """PostgreSQL as it is installed here, otherwise as the package pgserver brings it."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    server = Postgres(postgres_programs(folder), folder, free_port())
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        if server.process is not None:
            server.stop()
        shutil.rmtree(folder)
