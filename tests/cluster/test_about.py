"""What is told of a cluster before a job is sent there."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from tutti.cluster.about import about_cluster
from tutti.config.study import Resources


def client(pages: dict[str, Any]) -> Any:
    """One of a dashboard that has these pages of Ray's API."""

    def asked(method: str, page: str, **options: object) -> object:
        data = pages.get(page.removeprefix("/api/v0/").partition("?")[0])
        return SimpleNamespace(ok=data is not None, json=lambda: {"data": data})

    return cast(Any, SimpleNamespace(_do_request=asked))


def test_other_versions_than_this_machine_s_and_what_several_nodes_have_are_told():
    node = {"state": "ALIVE", "resources_total": {"CPU": 4.0}}
    pages = {
        "cluster_metadata": {"rayVersion": "2.1.0", "pythonVersion": platform.python_version()},
        "nodes": {"result": {"result": [node, node, {**node, "state": "DEAD"}]}},
    }
    version, nodes = about_cluster(client(pages), Resources(cpus_per_worker=2))
    assert version == f"The head has Ray 2.1.0, this machine {ray.__version__}: the job runs with the head's."
    assert nodes == "2 nodes, 2 with 4 CPUs for 2 trials each: room for 4 trials at a time"
    assert about_cluster(client({}), Resources()) == []  # an older Ray's dashboard


@pytest.mark.slow
@pytest.mark.ray
def test_a_head_tells_its_versions_and_its_nodes(cluster):
    code = """
import json, sys, time
from tutti.cluster.about import _asked
from tutti.cluster.client import cluster_faults, job_client
with cluster_faults(sys.argv[1]):
    client = job_client(sys.argv[1])
    for _ in range(60):  # a dashboard that has just begun knows of no nodes
        versions, nodes = (_asked(client, page) for page in ("cluster_metadata", "nodes?detail=1"))
        if nodes["result"]["result"]:
            break
        time.sleep(1)
print(json.dumps([versions, nodes]))
"""
    # Ray reads the token's settings once in a process, and the tests' own has none.
    command = [sys.executable, "-c", code, cluster.address]
    run = subprocess.run(command, env=cluster.env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    versions, nodes = json.loads(run.stdout.splitlines()[-1])
    assert versions["rayVersion"] == ray.__version__
    assert versions["pythonVersion"] == platform.python_version()
    [node] = nodes["result"]["result"]
    assert node["state"] == "ALIVE"
    assert node["resources_total"]["CPU"] == 2
