"""The number of CPUs of a private Ray."""

from __future__ import annotations

import logging
import os


def private_cpus() -> int:
    """How many CPUs a private Ray has: as many as Ray counts, but no more than this process may run on.

    Ray obeys the quota of a container, but not the affinity that SLURM, `taskset` or a cpuset of cgroups v2 set.
    """
    from ray._private.utils import get_num_cpus

    logger = logging.getLogger("ray._private.utils")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it would warn of a quota with a fraction of a CPU
    try:
        counted = int(get_num_cpus(override_docker_cpu_warning=True))
    finally:
        logger.setLevel(level)
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        counted = min(counted, len(os.sched_getaffinity(0)))
    return max(counted, 1)  # Ray counts a quota below 1 as no CPU, on which nothing would run
