"""A study on a cluster in which nodes die, come, lose their link, or do not see the shared folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from network import Network, no_namespaces

from tutti.records import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow]
KEYS = ("t0000", "t0001", "t0002")
LONG = {"training__num_train_epochs": 60, "search__trials": 3, "resources__concurrent_trials": 3}


@pytest.fixture
def start_network(tutti_command) -> Iterator[Callable[..., Network]]:
    if reason := no_namespaces():
        pytest.skip(reason)
    started: list[Network] = []

    def start(*, head_cpus: int = 0) -> Network:
        started.append(Network(tutti_command, head_cpus=head_cpus))
        return started[-1]

    yield start
    for each in started:
        each.close()


def epochs_reported(study) -> int:
    return sum(len(study.reported_epochs(key)) for key in KEYS)


def check_whole(study, running) -> None:
    """Every trial has finished, and none has trained an epoch again that it had reported."""
    assert running.wait() == 0, running.output
    assert [record.state for record in study.records()] == [TrialState.FINISHED] * 3
    for key in KEYS:
        epochs = study.reported_epochs(key)
        assert epochs == sorted(set(epochs)), f"{key} trained an epoch again"
    assert {run.info.status for run in study.runs().values()} == {"FINISHED"}
    assert "has been marked dead" not in running.output  # of Ray's own account of it


def under_way(study, running) -> None:
    for key in KEYS:
        running.wait_for(lambda key=key: max(study.resume_epochs(key), default=0) >= 3, what=f"{key} under way")


def test_a_study_outlives_every_other_node_and_takes_new_ones_in(make_study, start_network, tmp_path):
    network = start_network(head_cpus=1)
    first, second = network.add(), network.add()
    study = make_study(tmp_path, **LONG)
    running = network.tutti("tune", study.file)
    under_way(study, running)
    assert "3 nodes, 3 with 1 CPU for 1 trial each: room for 3 trials at a time" in running.output
    for node in (first, second):  # a study's own actors, which it cannot lose, are on the head
        titles = {each.cmdline()[0].partition(".")[0] for each in node.running.descendants("ray::")}
        assert titles - {"ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::IDLE"} == {"ray::RayTrainWorker"}
    network.kill(first)
    third = network.add()
    running.wait_for(lambda: f"the node {first.address} was lost" in running.output, what="word of the lost node")
    running.wait_for(lambda: f"the node {third.address} has joined" in running.output, what="word of the new node")
    running.wait_for(lambda: third.running.descendants("ray::RayTrainWorker"), what="a worker on the new node")
    for node in (second, third):
        before = epochs_reported(study)
        network.kill(node)
        running.wait_for(lambda before=before: epochs_reported(study) > before + 3, what="further epochs")
    check_whole(study, running)
    assert running.output.count("was lost") == 3


@pytest.mark.strain
# Ray gives a node up when five checks have failed, which takes it 15 s or over a minute.
@pytest.mark.parametrize(("seconds", "is_lost"), [(10, False), (100, True)])
def test_a_link_that_is_cut_costs_no_trial_even_if_ray_gives_its_node_up(
    make_study, start_network, tmp_path, seconds, is_lost
):
    network = start_network(head_cpus=1)
    node, _ = network.add(), network.add()
    study = make_study(tmp_path, **LONG)
    running = network.tutti("tune", study.file)
    under_way(study, running)
    network.cut(node)
    time.sleep(seconds)
    network.mend(node)
    check_whole(study, running)
    assert (f"the node {node.address} was lost" in running.output) == is_lost


@pytest.mark.strain
def test_a_node_that_does_not_see_the_folder_costs_no_trial(make_study, start_network, tmp_path):
    study = make_study(tmp_path, **LONG)
    study.folder.path.parent.mkdir(parents=True, exist_ok=True)
    network = start_network()
    seeing, blind = network.add(), network.add(hidden=study.folder.path.parent)
    running = network.tutti("tune", study.file)
    check_whole(study, running)
    [line] = [line for line in running.output.splitlines() if "does not see" in line]
    assert f"the node {blind.address} does not see" in line
    network.kill(seeing)
    alone = make_study(tmp_path, study="alone")
    running = network.tutti("tune", alone.file)
    assert running.wait() == 1, running.output
    [line] = [line for line in running.output.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {alone.folder.path} must be the same folder on every node that trains; got none")
    assert {record.state for record in alone.records()} == {TrialState.RUNNING}  # to go on with
