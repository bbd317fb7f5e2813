"""How many trials fit a cluster, and what is refused."""

from __future__ import annotations

import pytest

from tutti.cluster.connect import _fits, connected
from tutti.errors import ClusterError


@pytest.mark.parametrize(
    ("nodes", "workers", "cpus", "gpus", "fits"),
    [
        ([{"CPU": 8.0}], 1, 1, 0, 8),
        ([{"CPU": 8.0}], 2, 3, 0, 1),
        ([{"CPU": 2.0}], 3, 1, 0, 0),
        ([{"CPU": 64.0, "GPU": 4.0}], 1, 4, 1, 4),
        ([{"CPU": 64.0, "GPU": 4.0}], 2, 4, 0.5, 4),
        ([{"CPU": 4.0, "GPU": 8.0}], 1, 4, 1, 1),
        ([{"CPU": 64.0}], 1, 1, 1, 0),
        ([{}], 1, 1, 0, 0),
        ([{"CPU": 4.0}, {"CPU": 4.0}], 1, 6, 0, 0),  # a worker cannot lie on two nodes
        ([{"CPU": 4.0}, {"CPU": 4.0}], 2, 3, 0, 1),
    ],
)
def test_as_many_trials_fit_as_the_scarcest_resource_allows(nodes, workers, cpus, gpus, fits):
    assert _fits(nodes, workers=workers, cpus=cpus, gpus=gpus) == fits


def test_a_cluster_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "no port here")
    with (
        pytest.raises(ClusterError, match="Ray at no port here must answer"),
        connected(workers=1, cpus_per_worker=1, gpus_per_worker=0, concurrent_trials=None),
    ):
        pass
