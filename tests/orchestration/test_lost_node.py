"""A node of a cluster is lost in mid-study, and the others train what it had; a busy machine is not given up."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
from bad_input_changes import no_root_mount
from running_command import Running

from tutti.records import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow]
RAYLET = str(Path(ray.__file__).parent / "core/src/ray/raylet/raylet")
ENV = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 40}


@dataclass(frozen=True)
class Nodes:
    """The nodes of a cluster, all on this machine, and the environment of a command that runs on its head."""

    head: Running
    others: list[Running]
    env: dict[str, str]


@pytest.fixture
def start_nodes(tutti_command, free_port):
    """Starts a head and other nodes of one CPU each. Some of those see an empty folder in place of another one."""
    folder = tempfile.mkdtemp(prefix="ray-")  # the sockets below it must have short paths
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port", "metrics-export-port")
    ports = {name: free_port() for name in names}
    address, ray_command = f"127.0.0.1:{ports['port']}", [str(Path(sys.executable).with_name("ray"))]
    shared = ["--disable-usage-stats", "--block"]
    started = []

    def start(*options: str, hidden: Path | None = None):
        elsewhere = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs tmpfs {hidden} && exec "$0" "$@"'] if hidden else []
        started.append(tutti_command("start", *options, *shared, env=ENV, command=[*elsewhere, *ray_command]))
        started[-1].wait_for(lambda: "Ray runtime started" in started[-1].output, what="a node")
        return started[-1]

    def start_all(*, head_cpus: int, seeing: int, blind: int = 0, hidden: Path | None = None) -> Nodes:
        place = ["--node-ip-address=127.0.0.1", *(f"--{name}={port}" for name, port in ports.items())]
        head = start("--head", f"--num-cpus={head_cpus}", f"--temp-dir={folder}", *place)
        others = []
        for number in range(seeing + blind):
            agents = [f"--{name}={free_port()}" for name in ("dashboard-agent-listen-port", "metrics-export-port")]
            own = ["--num-cpus=1", f"--node-ip-address=127.0.0.{number + 2}"]
            others.append(start(f"--address={address}", *own, *agents, hidden=hidden if number >= seeing else None))
        return Nodes(head, others, {**ENV, "RAY_ADDRESS": address})

    yield start_all
    for each in reversed(started):
        each.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.strain
def test_a_study_that_loses_every_other_node_loses_no_trial(make_study, tutti_command, start_nodes, tmp_path):
    nodes = start_nodes(head_cpus=1, seeing=2)
    changes = {"training__num_train_epochs": 60, "search__trials": 3, "resources__concurrent_trials": 3}
    study = make_study(tmp_path, **changes)
    running = tutti_command("tune", study.file, env=nodes.env)
    keys = ("t0000", "t0001", "t0002")
    for key in keys:
        running.wait_for(lambda key=key: max(study.resume_epochs(key), default=0) >= 3, what=f"{key} under way")
    for node in nodes.others:
        titles = {each.cmdline()[0].partition(".")[0] for each in node.descendants("ray::")}
        assert titles - {"ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::IDLE"} == {"ray::RayTrainWorker"}

    def epochs_reported() -> int:
        return sum(len(study.reported_epochs(key)) for key in keys)

    for node in nodes.others:
        before = epochs_reported()
        [raylet] = node.descendants(RAYLET)
        raylet.kill()
        running.wait_for(lambda before=before: epochs_reported() > before + 3, what="further epochs")
    assert running.wait() == 0, running.output
    assert [record.state for record in study.records()] == [TrialState.FINISHED] * 3
    for key in keys:
        epochs = study.reported_epochs(key)
        assert epochs == sorted(set(epochs)), f"{key} trained an epoch again"
    assert {run.info.status for run in study.runs().values()} == {"FINISHED"}


@pytest.mark.strain
def test_a_node_that_does_not_see_the_folder_costs_no_trial(make_study, tutti_command, start_nodes, tmp_path):
    if reason := no_root_mount():
        pytest.skip(reason)
    study = make_study(tmp_path, training__num_train_epochs=40)  # until the other node's worker has started
    study.folder.path.parent.mkdir(parents=True, exist_ok=True)
    nodes = start_nodes(head_cpus=0, seeing=1, blind=1, hidden=study.folder.path.parent)
    running = tutti_command("tune", study.file, env=nodes.env)
    assert running.wait() == 0, running.output
    assert {record.state for record in study.records()} == {TrialState.FINISHED}
    [line] = [line for line in running.output.splitlines() if "does not see" in line]
    assert "the node 127.0.0.3 does not see" in line
    [raylet] = nodes.others[0].descendants(RAYLET)
    raylet.kill()
    alone = make_study(tmp_path, study="alone")
    running = tutti_command("tune", alone.file, env=nodes.env)
    assert running.wait() == 1, running.output
    [line] = [line for line in running.output.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {alone.folder.path} must be the same folder on every node that trains; got none")
    assert {record.state for record in alone.records()} == {TrialState.RUNNING}  # to go on with


@pytest.mark.strain
def test_a_study_on_a_machine_too_busy_to_answer_ray_goes_on(make_study, tutti_command, tmp_path):
    study = make_study(tmp_path, training__num_train_epochs=60)
    running = tutti_command("tune", study.file)
    running.wait_for(lambda: study.resume_epochs("t0000"), what="t0000 under way")
    [raylet] = running.descendants(RAYLET)
    raylet.suspend()
    time.sleep(90)  # Ray waits five times 10 s for an answer, with 3 s in between
    raylet.resume()
    assert running.wait() == 0, running.output
    assert [record.state for record in study.records()] == [TrialState.FINISHED] * 2
