"""Connects to Ray: the cluster that ``$RAY_ADDRESS`` names, or a private one on this machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import psutil

from tutti.cluster.ending import interrupts_kept, terminated_as_interrupted, undisturbed
from tutti.errors import ClusterError, Fault, ResourcesError

_WORKER_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # Linux gives PyTorch's large tensors large pages: a step allocates most of its memory anew, page by page.
    "THP_MEM_ALLOC_ENABLE": "1",
}
_ALONE = {"include_dashboard": True, "dashboard_host": "127.0.0.1"}


def worker_environment() -> dict[str, str]:
    """Environment variables of workers, each as this process has it where it does."""
    return {name: os.environ.get(name, value) for name, value in _WORKER_ENVIRONMENT.items()}


@contextmanager
def connected(
    *, workers: int, cpus_per_worker: int, gpus_per_worker: float, concurrent_trials: int | None
) -> Iterator[int]:
    """Connects to Ray and yields how many trials may run at a time; disconnects at the end.

    SIGTERM is Ctrl-C meanwhile.

    A trial that asks for more than there is would wait in silence for ever. So it is refused, save on a cluster where
    ``concurrent_trials`` is given: there an autoscaler may bring what is missing.

    Raises:
        ClusterError: where Ray cannot be reached or lacks its dashboard.
        ResourcesError: where it is too small for one trial.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Each trial is several small actors; on a machine of few CPUs Ray warns of them as too many processes.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "PYTHON worker processes have been started")
    import ray

    address = os.environ.get("RAY_ADDRESS")
    _begin_in_order(address)
    try:
        _require_state_api()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fits = _fits(nodes, workers=workers, cpus=cpus_per_worker, gpus=gpus_per_worker)
        if fits == 0 and not (address and concurrent_trials):
            have = ray.cluster_resources()
            raise ResourcesError(
                Fault(
                    "resources",
                    f"fit the Ray cluster, which has {have.get('CPU', 0):g} CPUs and {have.get('GPU', 0):g} GPUs",
                    f"workers: {workers}, each with {cpus_per_worker} CPUs and {gpus_per_worker:g} GPUs",
                    "lower them, or set resources.concurrent_trials where an autoscaler adds nodes",
                )
            )
        with terminated_as_interrupted(None if address else partial(_is_gone, psutil.Process().children())):
            yield concurrent_trials if address and concurrent_trials else min(fits, concurrent_trials or fits)
    finally:
        with undisturbed():
            ray.shutdown()


def _begin_in_order(address: str | None) -> None:
    """Starts Ray or connects to it; told to end meanwhile, it raises KeyboardInterrupt."""
    import ray

    try:
        with terminated_as_interrupted():
            _begin(address)
    except (KeyboardInterrupt, SystemExit) as error:  # the latter is Ray's own answer to SIGTERM
        with undisturbed():
            ray.shutdown()
        raise KeyboardInterrupt from error
    except Exception as error:  # as plain as this is what Ray raises where a part of it dies while it starts
        remedy = "see that the cluster is up (`ray status`), or unset RAY_ADDRESS to run on this machine alone"
        raise ClusterError(
            Fault(
                f"Ray at {address}" if address else "a Ray on this machine",
                "answer",
                (str(error).strip() or type(error).__name__).splitlines()[0],
                remedy if address else "see what else keeps this machine busy, and run the command again",
            )
        ) from error


def _begin(address: str | None) -> None:
    """A Ray of our own gets a second chance: it gives itself 30 s to start, which may be too few on a busy machine."""
    import ray

    for last in (True,) if address else (False, True):
        try:
            with interrupts_kept(), nullcontext() if address else _handed_down(worker_environment()):
                ray.init(
                    address=address or "local",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **({"runtime_env": {"env_vars": worker_environment()}} if address else _ALONE),
                )
            return
        except Exception:  # as plain as this is what Ray raises where it did not start in time
            if last or ray.is_initialized():  # a Ray that the program had before is not ours to end
                raise
            ray.shutdown()


@contextmanager
def _handed_down(environment: Mapping[str, str]) -> Iterator[None]:
    """Lets what is started within inherit an environment.

    A Ray of our own needs no runtime environment then, and takes the worker processes that it starts with.
    """
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def _is_gone(daemons: Sequence[psutil.Process]) -> bool:
    """Whether several of Ray's processes have ended. One alone may have been killed for its memory, long ago."""
    return sum(map(_has_ended, daemons)) > 1


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _fits(nodes: Sequence[Mapping[str, float]], *, workers: int, cpus: int, gpus: float) -> int:
    """How many trials fit at a time. A worker lies on one node, a trial's workers may lie on several."""
    places = 0
    for have in nodes:
        here = have.get("CPU", 0.0) // cpus
        places += int(min(here, have.get("GPU", 0.0) // gpus) if gpus else here)
    return places // workers


def _require_state_api(seconds: float = 30.0) -> None:
    """Without the dashboard's State API the first trial stopped early would leak its workers and hang the next."""
    import ray
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    until = time.monotonic() + seconds
    while True:
        try:
            # The address is named, for the machine may run several clusters.
            list_nodes(address=ray.get_runtime_context().gcs_address, limit=1, timeout=5)
            return
        except (RayStateApiException, ConnectionError, OSError) as error:
            if time.monotonic() > until:
                raise ClusterError(
                    Fault(
                        "the Ray cluster",
                        "run with its dashboard, whose State API frees the workers of stopped trials",
                        f"no answer from it ({str(error).splitlines()[0]})",
                        "install ray[default] on every node and start the head without --include-dashboard=false",
                    )
                ) from error
            time.sleep(0.5)
