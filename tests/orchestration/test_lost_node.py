"""A node of a cluster is lost in mid-study, and the others train what it had; a busy machine is not given up."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest
import ray

from tutti.records import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.strain]
RAYLET = str(Path(ray.__file__).parent / "core/src/ray/raylet/raylet")
ENV = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 40}


@pytest.fixture
def nodes(tutti_command, free_port):
    """A head without CPUs and two nodes of one each, all on this machine; the address, and the nodes."""
    folder = tempfile.mkdtemp(prefix="ray-")  # the sockets below it must have short paths
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port", "metrics-export-port")
    ports = {name: free_port() for name in names}
    address, ray_command = f"127.0.0.1:{ports['port']}", [str(Path(sys.executable).with_name("ray"))]
    shared = ["--disable-usage-stats", "--block"]

    def start(*options: str):
        return tutti_command("start", *options, *shared, env=ENV, command=ray_command)

    place = ["--node-ip-address=127.0.0.1", *(f"--{name}={port}" for name, port in ports.items())]
    head = start("--head", "--num-cpus=0", f"--temp-dir={folder}", *place)
    head.wait_for(lambda: "Ray runtime started" in head.output, what="a head")
    others = []
    for _ in range(2):
        agents = [f"--{name}={free_port()}" for name in ("dashboard-agent-listen-port", "metrics-export-port")]
        others.append(start(f"--address={address}", "--num-cpus=1", *agents))
        others[-1].wait_for(lambda: "Ray runtime started" in others[-1].output, what="a node")
    yield address, others
    for each in (*others, head):
        each.kill()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_study_that_loses_one_of_two_nodes_goes_on_with_the_other_and_loses_no_trial(
    make_study, tutti_command, nodes, tmp_path
):
    address, (lost, _) = nodes
    study = make_study(tmp_path, training__num_train_epochs=60, resources={"concurrent_trials": 2})
    running = tutti_command("tune", study.file, env={**ENV, "RAY_ADDRESS": address})
    for key in ("t0000", "t0001"):
        running.wait_for(lambda key=key: max(study.resume_epochs(key), default=0) >= 3, what=f"{key} under way")
    [raylet] = lost.descendants(RAYLET)
    raylet.kill()
    assert running.wait() == 0, running.output
    assert [record.state for record in study.records()] == [TrialState.FINISHED] * 2
    for key in ("t0000", "t0001"):
        epochs = study.reported_epochs(key)
        assert epochs == sorted(set(epochs)), f"{key} trained an epoch again"
    assert {run.info.status for run in study.runs().values()} == {"FINISHED"}


def test_a_study_on_a_machine_that_is_too_busy_to_answer_for_longer_than_ray_waits_goes_on(
    make_study, tutti_command, tmp_path
):
    study = make_study(tmp_path, training__num_train_epochs=60)
    running = tutti_command("tune", study.file)
    running.wait_for(lambda: study.resume_epochs("t0000"), what="t0000 under way")
    [raylet] = running.descendants(RAYLET)
    raylet.suspend()
    time.sleep(90)  # Ray waits five times 10 s for an answer, with 3 s in between
    raylet.resume()
    assert running.wait() == 0, running.output
    assert [record.state for record in study.records()] == [TrialState.FINISHED] * 2
