"""What Ray Train starts for a run of a pool's workers."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest
from ray.train import BackendConfig
from ray.train.torch import TorchConfig

from tutti.config.study import Resources
from tutti.orchestration.worker import worker_group
from tutti.orchestration.worker.nodes import elsewhere_than
from tutti.orchestration.worker.worker_group import WorkerGroup, use_interface_of_ray

RUN = {"name": "run", "records": "/tmp"}


def group(**resources: float) -> WorkerGroup:
    return WorkerGroup(print, **RUN, resources=Resources.model_validate(resources), on_placement_group=print)


def test_a_worker_alone_has_no_process_group_which_would_copy_every_gradient():
    assert type(group(workers=1).backend_config) is BackendConfig


@pytest.mark.parametrize(("gpus", "backend"), [(0, "gloo"), (1, "cpu:gloo,cuda:nccl")])
def test_several_workers_talk_over_gloo_and_exchange_what_lies_on_gpus_over_nccl(gpus, backend):
    made = group(workers=2, gpus_per_worker=gpus)
    assert isinstance(made.backend_config, TorchConfig)
    assert made.backend_config.backend == backend
    assert made.scaling_config.num_workers == 2
    assert made.scaling_config.use_gpu is bool(gpus)


def test_no_actor_is_started_for_datasets_that_there_are_none_of_and_to_watch_the_controller():
    names = [type(callback).__name__ for callback in group(workers=1)._create_default_callbacks()]
    assert "DatasetsCallback" not in names
    assert "PlacementGroupCleanerCallback" not in names
    assert "BackendSetupCallback" in names


def test_workers_may_be_on_all_nodes_but_those_to_avoid():
    selected = elsewhere_than(["a", "b"])
    made = WorkerGroup(print, **RUN, resources=Resources(), on_placement_group=print, nodes=selected)
    assert made.scaling_config.label_selector == {"ray.io/node-id": "!in(a,b)"}
    assert elsewhere_than([]) is None


def test_gloo_listens_where_nodes_reach_each_other_unless_the_user_names_an_interface(monkeypatch):
    interfaces = {"lo": ["127.0.0.1", "127.0.1.1"], "eth0": ["10.0.0.2", "fe80::1"]}
    addresses = {name: [SimpleNamespace(address=each) for each in own] for name, own in interfaces.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(worker_group, "get_node_ip_address", lambda: "10.0.0.2")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    use_interface_of_ray()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    use_interface_of_ray()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"
