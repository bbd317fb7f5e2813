"""Connects to Ray: to the cluster at ``$RAY_ADDRESS``, or to a private one on this machine."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tutti.cluster.ending import (
    ended_without,
    hangups_deferred,
    interrupts_deferred,
    interrupts_ignored,
    terminated_as_interrupted,
)
from tutti.cluster.token import provide_token
from tutti.errors import ClusterError, Fault, ResourcesError, UserError, first_line
from tutti.orchestration.worker.cpus import private_cpus
from tutti.orchestration.worker.nodes import room_in_words, trials_that_fit

if TYPE_CHECKING:
    from tutti.config.study import Resources


def _processor_flags() -> set[str]:
    """What this machine's first processor can do, as Linux names it; empty on other systems."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as cpuinfo:
            return set(next((line for line in cpuinfo if line.startswith("flags")), "").split())
    except OSError:
        return set()


def _compiled_products(flags: set[str]) -> dict[str, str]:
    """How many compiled matrix products a process keeps, on a processor with these flags.

    A bfloat16 product on the CPU is compiled for its shape, and a batch of another size has ten or more new shapes.
    oneDNN, and ideep between it and PyTorch, keep 1,024 each, a quarter of a MiB at a time. Fewer save up to 430 MiB a
    trial and cost 1 % of a step, but a quarter of it with AMX, where products take less time than compiling them.
    """
    return {} if "amx_bf16" in flags else {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "96", "LRU_CACHE_CAPACITY": "96"}


TORCH_ENVIRONMENT = {
    # PyTorch requests huge pages for large tensors, since each step allocates most of its memory anew.
    "THP_MEM_ALLOC_ENABLE": "1",
    # OpenMP's threads wait for each other many times per step. Beside another process on their cores, the default of
    # 300,000 turns per wait makes a step ten times as long; this shorter wait costs 8 % where the cores are free.
    "GOMP_SPINCOUNT": "10000",
    **_compiled_products(_processor_flags()),
}
"""Environment variables of processes that train. They are read when torch is loaded."""

_WORKER_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONSAFEPATH": "1",  # processes that a worker starts import nothing from the current folder either
    # Without it, workers that request no GPU would all see and use the first one.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    **TORCH_ENVIRONMENT,
}

_ANSWER_SECONDS = 10  # for a cluster's head to answer
_NEEDED = {"raylet", "gcs_server"}  # of Ray's processes, as the system names them
_DUMP = re.compile("has been marked dead|Raylet is terminated")
_LOST = Fault(
    "the Ray of this command",
    "stay up until it ends",
    "one of its processes ended",
    "see what ended it, such as a lack of memory, and run the command again, `tutti tune` with --resume",
)


def worker_environment() -> dict[str, str]:
    """Environment variables of workers. Values that this process has set take precedence."""
    own = {name: os.environ.get(name, value) for name, value in _WORKER_ENVIRONMENT.items()}
    # A notebook's MPLBACKEND may not be installed, and matplotlib then fails to load. Older programs need Train's V1.
    return {**own, "MPLBACKEND": "agg", "RAY_TRAIN_V2_ENABLED": "1"}


@contextmanager
def connected(
    resources: Resources, *, autoscaled_to: int | None = None, tell: Callable[[str], object] = lambda _: None
) -> Iterator[int]:
    """Connects to Ray and yields how many trials of these resources may run concurrently; disconnects at the end.

    While connected, SIGTERM and SIGHUP act as Ctrl-C.

    A trial that needs more than the cluster has would silently wait for ever, so it is rejected. The exception is a
    cluster with ``concurrent_trials`` or ``autoscaled_to`` set, where an autoscaler may add what is missing.

    Args:
        autoscaled_to: without ``concurrent_trials``, how many at least on a cluster, even if fewer fit now.
        tell: called with where it runs, and on several nodes with what each has.

    Raises:
        UserError, ClusterError: as ``check_cluster`` does, or if Ray does not start.
        ResourcesError: if the cluster is too small for one trial.
    """
    # Ray reads these when it is imported. Each trial has several small actors: with few CPUs Ray would warn of too many
    # processes. Under `uv run` each worker would get an environment of its own, in a copy of the current folder.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "PYTHON worker processes have been started")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    for name in ("TUNE_RESULT_DIR", "RAY_AIR_LOCAL_CACHE_DIR"):  # of older versions, which Tune refuses
        os.environ.pop(name, None)
    import ray

    check_cluster()
    address = os.environ.get("RAY_ADDRESS")
    tell(f"Connecting to Ray at {address}" if address else "Starting Ray")
    if not address and (another := _running_here()):
        tell(f"Another Ray runs on this machine, at {another}. To use its nodes, set RAY_ADDRESS=auto.")
    _start_interruptibly(address)
    concurrent = resources.concurrent_trials
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fits = trials_that_fit(nodes, resources)
        if len(nodes) > 1:
            tell(room_in_words(nodes, resources))
        autoscaled = (concurrent or max(fits, autoscaled_to or 0)) if address else 0
        if fits == 0 and not autoscaled:
            total = ray.cluster_resources()
            raise ResourcesError(
                Fault(
                    "resources",
                    f"fit the Ray cluster, which has {total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs",
                    str(resources),
                    "lower them, or set resources.concurrent_trials where an autoscaler adds nodes",
                )
            )
        daemons = [] if address else psutil.Process().children()
        needed = [daemon for daemon in daemons if daemon.name() in _NEEDED]
        with (
            _dumps_left_out(),
            terminated_as_interrupted(partial(_is_gone, daemons) if daemons else None),
            ended_without(lambda: any(map(_has_ended, needed)), _LOST) if needed else nullcontext(),
        ):
            yield autoscaled or min(fits, concurrent or fits)
    finally:
        with interrupts_ignored():
            ray.shutdown()


def check_cluster() -> None:
    """Checks that a cluster answers at ``$RAY_ADDRESS``: Ray would try to connect for minutes. Passes if it is unset.

    Raises:
        UserError: if it is the address of a Ray Client's server or of a dashboard. A study's driver, which writes to
            the cluster's storage, runs in the cluster itself.
        ClusterError: if no cluster answers.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return
    if "://" in address:
        remedy = (
            "run the command on a machine of the cluster, or from elsewhere `tutti submit --address http://HOST:8265`"
        )
        rule = "be HOST:PORT of a cluster's head, by default port 6379"
        raise UserError(Fault("RAY_ADDRESS", rule, repr(address), remedy))
    from ray._private.services import canonicalize_bootstrap_address

    try:
        if place := canonicalize_bootstrap_address(address):
            _call(place)
    except (OSError, ValueError) as error:
        raise _no_answer(address, first_line(error)) from error


def _call(place: str) -> None:
    """Raises ConnectionError unless a cluster's head listens at HOST:PORT. Ray tells if it wants another token."""
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.gcs_service_pb2 import CheckAliveRequest
    from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

    channel = init_grpc_channel(place, options=[("grpc.enable_http_proxy", 0)])  # Ray itself uses no proxy
    try:
        NodeInfoGcsServiceStub(channel).CheckAlive(CheckAliveRequest(), timeout=_ANSWER_SECONDS)
    except grpc.RpcError as error:
        code, details = error.code(), str(error.details())
        if code is grpc.StatusCode.UNAVAILABLE:  # the details end with what the system says
            raise ConnectionError(details.rpartition(": ")[2].rstrip("]")) from error
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise ConnectionError(f"no answer within {_ANSWER_SECONDS} s") from error
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise ConnectionError("another service than a cluster's head") from error
    finally:
        channel.close()


def _running_here() -> str | None:
    """The address of a Ray that `ray start` has begun on this machine, if one answers."""
    from ray._private.services import find_bootstrap_address

    address = find_bootstrap_address(None)
    with suppress(OSError):
        if address:
            _call(address)
            return str(address)
    return None


def _no_answer(address: str, got: str) -> ClusterError:
    remedy = "check that the cluster is up (`ray status`), or unset RAY_ADDRESS to run on this machine alone"
    return ClusterError(Fault(f"Ray at {address}", "answer", got, remedy))


def gpus_of_cluster() -> int:
    """Number of GPUs of the connected cluster."""
    import ray

    return int(ray.cluster_resources().get("GPU", 0))


def _start_interruptibly(address: str | None) -> None:
    """Starts Ray or connects to it. SIGTERM, SIGHUP and Ctrl-C raise KeyboardInterrupt meanwhile."""
    import ray

    try:
        with terminated_as_interrupted():
            _start(address)
    except (KeyboardInterrupt, SystemExit) as error:  # Ray turns SIGTERM into SystemExit
        with interrupts_ignored():
            ray.shutdown()
        raise KeyboardInterrupt from error
    except Exception as error:  # Ray raises a plain Exception if one of its processes dies during the start
        if address:
            raise _no_answer(address, first_line(error)) from error
        if "AF_UNIX path" in str(error):  # the system limits the paths of sockets, which are below $TMPDIR
            remedy = "set RAY_TMPDIR to a folder with a short path, such as /tmp"
        elif isinstance(error, OSError) and error.filename:  # below $RAY_TMPDIR, or else /tmp
            remedy = "set RAY_TMPDIR to a folder with a short path in which you may write"
        else:
            remedy = "see what else keeps this machine busy, and run the command again"
        raise ClusterError(Fault("a Ray on this machine", "answer", first_line(error), remedy)) from error


def _start(address: str | None) -> None:
    """Starts Ray or connects to it. A private Ray is tried twice, as its limit of 30 s may be too short."""
    import ray
    from ray.job_config import JobConfig

    if not address:
        provide_token()
    # Ray puts the current folder first on its workers' import path, where a `datasets.py` would take the place of the
    # library, except for the jobs of its clients. Workers import what this process does.
    from_current_folder = not {"", str(Path.cwd())}.isdisjoint(sys.path)
    for is_last_try in (True,) if address else (False, True):
        try:
            inherited = nullcontext() if address else _inherited(worker_environment())
            with interrupts_deferred(), hangups_deferred(), inherited:
                ray.init(
                    address=address or "local",
                    num_cpus=None if address else private_cpus(),
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    job_config=JobConfig(_client_job=not from_current_folder),
                    runtime_env={"env_vars": worker_environment()} if address else None,
                    include_dashboard=None if address else False,
                    # By default Ray gives a node up after a minute without an answer, and with it the driver. A node
                    # that is the whole machine is only busy: if it dies, `ended_without` ends the driver.
                    _system_config=None if address else {"health_check_failure_threshold": 1000},
                )
            return
        except Exception:  # Ray raises a plain Exception after its time limit
            if is_last_try or ray.is_initialized():  # do not shut down a Ray that the program started before
                raise
            ray.shutdown()


@contextmanager
def _dumps_left_out() -> Iterator[None]:
    """Leaves out what Ray prints of a lost node, its possible causes and the end of its log: a study tells of it."""
    from ray._private import worker

    printed = worker.print_to_stdstream

    def print_others(data: Mapping[str, Any], *given: Any, **named: Any) -> None:
        if not any(_DUMP.search(line) for line in data["lines"]):
            printed(data, *given, **named)

    worker.print_to_stdstream = print_others
    try:
        yield
    finally:
        worker.print_to_stdstream = printed


@contextmanager
def _inherited(environment: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for processes that are started in the block.

    A private Ray thus needs no runtime environment, with which it could not use the workers that it starts in advance.
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
    """Whether several of Ray's processes have ended. A single one may have been killed earlier, for its memory."""
    return sum(map(_has_ended, daemons)) > 1


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
