"""How many CPUs a private Ray is given."""

from __future__ import annotations

import logging
import multiprocessing
import os

import pytest
from ray._private import utils

from tutti.orchestration.worker.cpus import private_cpus


@pytest.mark.parametrize(
    ("machine", "quota", "allowed", "cpus"),
    [
        (8, None, 8, 8),
        (8, None, 3, 3),  # a SLURM job, taskset, a cpuset
        (8, 2.0, 8, 2),  # a container
        (8, 2.5, 8, 2),
        (8, 4.0, 3, 3),
        (8, 0.5, 8, 1),
        (8, 4.0, None, 4),  # macOS
    ],
)
def test_a_private_ray_has_the_cpus_that_quota_and_affinity_allow(monkeypatch, caplog, machine, quota, allowed, cpus):
    monkeypatch.setattr(multiprocessing, "cpu_count", lambda: machine)
    monkeypatch.setattr(utils, "_get_docker_cpus", lambda: quota)
    monkeypatch.delenv("RAY_USE_MULTIPROCESSING_CPU_COUNT", raising=False)
    if allowed is None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(allowed)), raising=False)
    logger = logging.getLogger("ray._private.utils")
    logger.addHandler(caplog.handler)  # Ray's loggers do not propagate
    try:
        assert private_cpus() == cpus
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records
