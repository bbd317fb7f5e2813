"""How many trials fit on nodes, and how a node tells whether it sees the study's folder."""

from __future__ import annotations

import pytest
import ray

from tutti.config.folder import StudyFolder
from tutti.config.study import Resources
from tutti.files import strays
from tutti.orchestration.worker import nodes as module
from tutti.orchestration.worker.nodes import NodeWatch, no_node_fault, probe_of, room_in_words, trials_that_fit


@pytest.mark.parametrize(
    ("nodes", "workers", "cpus", "gpus", "fits"),
    [
        ([{"CPU": 8.0}], 1, 1, 0, 8),
        ([{"CPU": 8.0}], 2, 3, 0, 1),
        ([{"CPU": 2.0}], 3, 1, 0, 0),
        ([{"CPU": 64.0, "GPU": 4.0}], 1, 4, 1, 4),
        ([{"CPU": 64.0, "GPU": 4.0}], 2, 4, 0.5, 4),
        ([{"CPU": 4.0, "GPU": 8.0}], 1, 4, 1, 1),
        ([{"CPU": 64.0, "GPU": 1.0}], 1, 1, 0.2, 5),
        ([{"CPU": 64.0, "GPU": 1.0}], 1, 1, 0.1, 10),
        ([{"CPU": 64.0, "GPU": 2.0}], 1, 1, 0.3, 6),
        ([{"CPU": 64.0}], 1, 1, 1, 0),
        ([{}], 1, 1, 0, 0),
        ([{"CPU": 4.0}, {"CPU": 4.0}], 1, 6, 0, 0),  # a worker cannot lie on two nodes
        ([{"CPU": 4.0}, {"CPU": 4.0}], 2, 3, 0, 1),
    ],
)
def test_as_many_trials_fit_as_the_scarcest_resource_allows(nodes, workers, cpus, gpus, fits):
    resources = Resources.model_construct(workers=workers, cpus_per_worker=cpus, gpus_per_worker=gpus)
    assert trials_that_fit(nodes, resources) == fits


def test_a_node_that_sees_the_folder_finds_the_probe_of_this_run_and_no_older_one(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PROBE_SECONDS", 0)
    folder = StudyFolder(tmp_path / "s")
    with probe_of(folder) as probe:
        assert probe.is_seen()
        assert strays(folder.path) == [probe.file]  # `tutti doctor` removes it if the driver is killed
        probe.file.write_bytes(b"of another file system")
        assert not probe.is_seen()
        (folder.path / ".probe.abcd1234.tmp").touch()  # of a driver that was killed
    assert not probe.is_seen()
    assert list(folder.path.iterdir()) == []


def test_a_study_ends_once_no_node_that_sees_its_folder_has_room_for_a_trial(tmp_path, monkeypatch):
    cluster = [("head", 0, True), ("first", 2, True), ("second", 2, True), ("gone", 2, False)]
    named = [{"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus}} for name, cpus, alive in cluster]
    monkeypatch.setattr(ray, "nodes", lambda: named)
    folder, blind = StudyFolder(tmp_path / "s"), {"first": "10.0.0.1"}
    assert no_node_fault(folder, blind, Resources(cpus_per_worker=2)) is None
    fault = no_node_fault(folder, {**blind, "second": "10.0.0.2"}, Resources(cpus_per_worker=2))
    assert "be the same folder on every node that trains; got none, or another folder, on 10.0.0.1, 10.0.0.2" in str(
        fault
    )
    assert str(no_node_fault(folder, blind, Resources(workers=2, cpus_per_worker=2))).count("10.0.0") == 1


def test_nodes_are_told_by_what_they_have_and_what_fits_there():
    nodes = [{"CPU": 0.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 4.0}]
    text = room_in_words(nodes, Resources(cpus_per_worker=4, gpus_per_worker=0.5))
    with_gpu, others = (
        "2 with 8 CPUs, 1 GPU for 2 trials each",
        "1 with 0 CPUs for no trial; 1 with 4 CPUs for no trial",
    )
    assert text == f"4 nodes, {with_gpu}; {others}: room for 4 trials at a time"
    text = room_in_words(nodes, Resources(workers=2, cpus_per_worker=4))
    assert "1 with 4 CPUs for 1 worker: room for 2 trials" in text


def test_nodes_that_come_and_go_are_told_once_with_why(monkeypatch):
    monkeypatch.setattr(module, "WATCH_SECONDS", 0)

    def node(number: int, *, died: int | None = None) -> dict[str, object]:
        place = {"NodeID": f"n{number}", "NodeManagerAddress": f"10.0.0.{number}", "Alive": died is None}
        return place if died is None else {**place, "DeathReason": died}

    watch, seen = NodeWatch(), []
    for now in (
        [node(1), node(2), node(3)],
        [node(1), node(2, died=2), node(3, died=4)],
        [node(1), node(2, died=2), node(3, died=4), node(4)],
    ):
        monkeypatch.setattr(ray, "nodes", lambda now=now: now)
        seen.append(watch.changes())
    lost = "the node 10.0.0.2 was lost; what it trained goes on elsewhere"
    assert seen == [[], [lost, "the node 10.0.0.3 was given back, idle"], ["the node 10.0.0.4 has joined"]]
