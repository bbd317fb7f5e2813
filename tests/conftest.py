"""A tiny study on disk, and the command ``tutti`` as a process of its own, for tests of the whole job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "cli"))  # its helpers serve a script too, so they are no plugin

from bad_input_run import FOREIGN

from tutti.config.folder import StudyFolder

settings.register_profile("any machine", deadline=None)  # a busy one takes longer than 200 ms now and then
settings.load_profile("any machine")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the hub; its library reads this once, when it is imported

CLASSES = {"mood": ("calm", "glad", "sad"), "same": ("0", "1")}


@dataclass
class Running:
    """A ``tutti`` that runs in a process group of its own, with the Ray that it started."""

    process: subprocess.Popen[bytes]
    output: Path
    tree: dict[int, Any] = field(default_factory=dict)  # every descendant ever seen; the dead keep their place

    @property
    def said(self) -> str:
        return self.output.read_text(encoding="utf8", errors="replace")

    def descendants(self, name: str = "") -> list[Any]:
        """Living descendants whose command line begins with ``name``."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.tree.setdefault(child.pid, child)
        found = []
        for child in self.tree.values():
            with suppress(psutil.NoSuchProcess, IndexError):
                alive = child.is_running() and child.status() != psutil.STATUS_ZOMBIE
                if alive and (not name or child.cmdline()[0].startswith(name)):
                    found.append(child)
        return found

    def wait_for(self, condition: Callable[[], Any], *, seconds: float = 300, what: str = "what is waited for") -> Any:
        """The condition's first true value while the process runs."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.descendants()
            if value := condition():
                return value
            assert self.process.poll() is None, f"ended before {what}:\n{self.said}"
            time.sleep(0.05)
        raise AssertionError(f"no {what} within {seconds} s:\n{self.said}")

    def wait(self, seconds: float = 500) -> int:
        """The exit code."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < until, f"still running after {seconds} s:\n{self.said}"
            self.descendants()
            time.sleep(0.5)  # looking through all processes is not free
        return int(self.process.returncode)

    def left_behind(self, seconds: float = 30) -> list[str]:
        """Command lines of descendants that are still there some time after the process ended."""
        import psutil

        until = time.monotonic() + seconds
        while (left := self.descendants()) and time.monotonic() < until:
            time.sleep(0.2)
        names = []
        for child in left:
            with suppress(psutil.NoSuchProcess):
                names.append(" ".join(child.cmdline())[:120])
        return names

    def kill(self) -> None:
        """Ends the process and all that it started."""
        import psutil

        for child in self.descendants():
            with suppress(psutil.NoSuchProcess):
                child.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Study:
    """A study file with its data, and the folder that its study will have."""

    file: Path
    folder: StudyFolder

    def resume_epochs(self, key: str) -> list[int]:
        """Epochs of the states that a trial could go on from now."""
        epochs = []
        for manifest in (self.folder.trial(key) / "resume").glob("stage-*/manifest.json"):
            with suppress(FileNotFoundError):  # an older state goes as a newer one comes
                epochs.append(json.loads(manifest.read_text(encoding="utf8"))["position"]["epoch"])
        return sorted(epochs)

    def reported_epochs(self, key: str) -> list[int]:
        """Every epoch a trial reported, in the order it did, a repeated one as often as it was."""
        events = map(json.loads, (self.folder.path / "tracking.jsonl").read_text(encoding="utf8").splitlines())
        return [
            event["step"] for event in events if "validation_score" in event.get("metrics", ()) and event["key"] == key
        ]

    def records(self) -> list[Any]:
        """The trials as the study's store knows them, or none while it has no store."""
        from tutti.errors import TuttiError
        from tutti.search.study_store import StudyStore

        try:
            store = StudyStore.load(self.folder.optuna_url, name=self.folder.name)
        except TuttiError:
            return []
        try:
            return store.records()
        finally:
            store.close()

    def runs(self, uri: str | None = None) -> dict[str, Any]:
        """Trial key to its MLflow run; the study's own has the key ``""``. No key may have two."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri or self.folder.mlflow_uri)
        experiment = client.get_experiment_by_name(self.folder.name)
        runs = client.search_runs([experiment.experiment_id])
        found = {run.data.tags.get("tutti.trial", ""): run for run in runs}
        assert len(found) == len(runs)
        return found


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    paths = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PATH": paths} | extra


@pytest.fixture(scope="session")
def tutti_command(tmp_path_factory) -> Iterator[Callable[..., Running]]:
    """Starts any command (by default ``python -m tutti``) and ends what is left of it after the tests."""
    started: list[Running] = []

    def start(
        *arguments: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "tutti"),
    ) -> Running:
        folder = tmp_path_factory.mktemp("command")
        output = folder / "output.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*command, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_environment(env or {}),
                cwd=cwd or folder,
                start_new_session=True,
            )
        started.append(Running(process, output))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="session")
def tutti(tutti_command) -> Callable[..., str]:
    """Runs ``tutti`` to its end and returns what it said; the exit code must be the one expected."""

    def run(*arguments: object, code: int = 0, seconds: float = 500, **options: Any) -> str:
        running = tutti_command(*arguments, **options)
        assert running.wait(seconds) == code, running.said
        return running.said

    return run


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    """Two tasks in the competition layout, a single one and a pair, and a random backbone without dropout."""
    import numpy as np
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    words = [f"w{number}" for number in range(60)]
    for number, (task, classes) in enumerate(CLASSES.items()):
        for part, rows in {"train": 120, "test": 23, "unlabeled": 37}.items():
            rng = np.random.default_rng([number, rows])
            lines = []
            for row in rng.permutation(rows):  # ids are not in order, as in no real file they have to be
                label = int(rng.integers(len(classes)))
                texts = [" ".join([words[label], *rng.choice(words[10:], size=rng.integers(2, 8))])]
                if task == "same":
                    texts.append(" ".join([words[5], *rng.choice(words[10:], size=3)]))
                lines.append("\t".join([f"{part[0]}{row}", *texts, *([classes[label]] if part == "train" else [])]))
            (folder / f"{task}_{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf8")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder / "backbone")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder / "backbone")
    recipe = {"members": {"top": 2}, "pseudo_labels": {"threshold": 0.3, "max_drift": None}}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder


@pytest.fixture(scope="session")
def make_study(tiny_data) -> Callable[..., Study]:
    """Writes the tiny study below a folder, with changes by dotted key, and leaves its data where they are."""

    def make(folder: Path, **changes: Any) -> Study:
        document: dict[str, Any] = {
            "study": "tiny",
            "backbone": str(tiny_data / "backbone"),
            "tasks": {
                task: {
                    "layout": "competition",
                    "pair": task == "same",
                    **{part: str(tiny_data / f"{task}_{part}.tsv") for part in ("train", "test", "unlabeled")},
                }
                for task in CLASSES
            },
            "split": {"validation": 0.25},
            "training": {
                "num_train_epochs": 2,
                "per_device_train_batch_size": 16,
                "max_length": 16,
                "head_dropout": 0.0,
                "logging_steps": 2,
            },
            "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-3, "high": 1e-2}},
            "search": {"trials": 2, "scheduler": "none"},
            "resources": {"workers": 1, "cpus_per_worker": 1, "concurrent_trials": 2},
            "storage": {"path": str(folder / "studies")},
            "ensemble": {"recipe": str(tiny_data / "recipe.yaml")},
        }
        for key, value in changes.items():
            node, (*outer, last) = document, key.split("__")
            for name in outer:
                node = node.setdefault(name, {})
            node[last] = value
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "study.yaml"
        file.write_text(json.dumps(document, indent=1), encoding="utf8")  # JSON is YAML too
        return Study(file, StudyFolder(folder / "studies" / document["study"]))

    return make


@dataclass(frozen=True)
class Finished:
    """A study that ``tutti tune`` ran to its end, what that said, and what was left behind of its processes."""

    study: Study
    said: str
    left_behind: list[str]

    def copy(self, folder: Path) -> Study:
        """A copy to change. Its folder is another, all else is the same."""
        shutil.copytree(self.study.folder.path.parent, folder / "studies")
        shutil.copy2(self.study.file, folder / "study.yaml")
        return Study(folder / "study.yaml", StudyFolder(folder / "studies" / self.study.folder.name))


@pytest.fixture(scope="session")
def finished(tutti_command, make_study, tmp_path_factory) -> Finished:
    """The tiny study, tuned once for all tests that only look at it."""
    study = make_study(tmp_path_factory.mktemp("finished"))
    running = tutti_command("tune", study.file)
    assert running.wait() == 0, running.said
    return Finished(study, running.said, running.left_behind())


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    def free() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return free


@dataclass(frozen=True)
class Cluster:
    """A Ray that was started by ``ray start --head``, of 2 CPUs.

    Attributes:
        env: what a client needs to be let in.
    """

    running: Running
    address: str
    env: Mapping[str, str]


@pytest.fixture(scope="session")
def cluster(tutti_command, free_port) -> Iterator[Cluster]:
    """A Ray cluster beside whatever others the machine runs: its ports, its folder and its token are its own."""
    temporary = tempfile.mkdtemp(prefix="ray-")  # the sockets below it must have short paths
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port", "metrics-export-port")
    ports = {name: free_port() for name in names}
    options = [f"--{name}={port}" for name, port in ports.items()]
    options += ["--num-cpus=2", f"--temp-dir={temporary}", "--disable-usage-stats", "--block"]
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 40}
    running = tutti_command("start", "--head", *options, env=env, command=[str(Path(sys.executable).with_name("ray"))])
    address = f"http://127.0.0.1:{ports['dashboard-port']}"
    header = {"Authorization": f"Bearer {env['RAY_AUTH_TOKEN']}"}

    def answers() -> bool:
        with suppress(requests.exceptions.RequestException):
            return requests.get(f"{address}/api/jobs/", headers=header, timeout=5).ok
        return False

    running.wait_for(answers, what="a dashboard that lists jobs")
    yield Cluster(running, address, env)
    running.kill()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def interrupt() -> Callable[[Running], None]:
    """What Ctrl-C in a terminal does: SIGINT to the whole process group."""
    return lambda running: os.killpg(running.process.pid, signal.SIGINT)


@dataclass
class Postgres:
    """A PostgreSQL server of the tests' own, on 127.0.0.1, which asks for its password.

    It refuses to be root's: there it is nobody's.
    """

    programs: Path
    folder: Path
    port: int
    password: str = "p@ss:w/rd"
    made: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        import psycopg

        command = [self.programs / "postgres", "-D", self.folder / "data", "-p", str(self.port), "-F"]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._user)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(psycopg.OperationalError), self._connected():
                return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)
        raise AssertionError("PostgreSQL does not answer")

    def stop(self) -> None:
        """As a server goes away that is shut down at once: its clients' connections break."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(60)

    def initialise(self) -> None:
        self.folder.chmod(0o777)
        secret = self.folder / "secret"
        secret.write_text(self.password)
        options = ["-U", "tutti", "-A", "scram-sha-256", "--pwfile", secret, "-E", "UTF8", "--no-locale", "-N"]
        command = [self.programs / "initdb", "-D", self.folder / "data", *options]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._user)

    def new_database(self, *, like: str = "template1") -> str:
        """The address of a new, empty database, with the password; or of a copy of one that nobody is connected to.

        Args:
            like: the address or the name of what is copied.
        """
        self.made += 1
        with self._connected() as connection:
            connection.execute(f"CREATE DATABASE d{self.made} TEMPLATE {like.rpartition('/')[2]}")
        return f"postgresql://tutti:{quote(self.password, safe='')}@127.0.0.1:{self.port}/d{self.made}"

    def drop(self, address: str) -> None:
        """Removes a database, whoever is connected to it."""
        with self._connected() as connection:
            connection.execute(f"DROP DATABASE {address.rpartition('/')[2]} WITH (FORCE)")

    def _connected(self) -> Any:
        import psycopg

        given = {"host": "127.0.0.1", "port": self.port, "user": "tutti", "password": self.password}
        return psycopg.connect(dbname="postgres", autocommit=True, **given)

    @property
    def _user(self) -> dict[str, Any]:
        return {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}


@pytest.fixture(scope="session")
def postgres(free_port) -> Iterator[Postgres]:
    """PostgreSQL as it is installed here, otherwise as the package pgserver brings it."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    debian = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))  # its package puts none of them on the path
    if found := shutil.which("postgres", path=os.pathsep.join([os.environ["PATH"], *debian])):
        programs = Path(found).resolve().parent
    else:  # nobody may not look into the folder that it is installed in
        brought = Path(pytest.importorskip("pgserver").__file__).parent / "pginstall"
        programs = shutil.copytree(brought, folder / "installed") / "bin"
    server = Postgres(programs, folder, free_port())
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        if server.process is not None:
            server.stop()
        shutil.rmtree(folder)
