"""A Ray Train run without the processes that trials do not need, each of which takes a second or two to start."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
from ray import train
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup as RayWorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util import get_node_ip_address

from tutti.config.study import Resources

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


class WorkerGroup(DataParallelTrainer):
    """A Ray Train run of workers, which form a torch process group if there are several.

    A single worker needs none, and DDP would copy every gradient into its buckets. Without a group, this process need
    not import torch either.

    Ray Train's controller runs in this process instead of an actor of its own, and no further actor watches it. If this
    process is killed, its placement group must be removed by another.

    Args:
        name: of the run, to which the time is added: a snapshot that a kill left incomplete cannot fail a later run.
        records: the folder of Ray's records of it, of which nothing is read.
        resources: of a study.
        nodes: a selector, by label, of those on which workers may be; by default all.
        on_one_node: whether all workers are on the same one, since they share a trial's folder on its disk.
        on_placement_group: called with the workers' placement group as soon as it is requested, before they start.
        options: further arguments of ``DataParallelTrainer``.
    """

    def __init__(
        self,
        *args: Any,
        name: str,
        records: str,
        resources: Resources,
        on_placement_group: Callable[[PlacementGroup], object],
        nodes: dict[str, str] | None = None,
        on_one_node: bool = False,
        **options: Any,
    ) -> None:
        per_worker: dict[str, float] = {"CPU": resources.cpus_per_worker}
        if resources.gpus_per_worker:
            per_worker["GPU"] = resources.gpus_per_worker
        super().__init__(
            *args,
            backend_config=_process_group(resources) if resources.workers > 1 else None,
            scaling_config=train.ScalingConfig(
                num_workers=resources.workers,
                use_gpu=resources.gpus_per_worker > 0,
                resources_per_worker=per_worker,
                label_selector=nodes,
                placement_strategy="STRICT_PACK" if on_one_node else "PACK",
            ),
            run_config=train.RunConfig(
                name=f"{name}-{time.time_ns()}",
                storage_path=records,
                # No retries within a run: restarted workers would take a new trial and abandon theirs.
                failure_config=train.FailureConfig(
                    max_failures=0, controller_failure_limit=0, max_preemption_failures=0
                ),
            ),
            **options,
        )
        self._on_placement_group = on_placement_group

    def _create_default_callbacks(self) -> list[Any]:
        """All except two that start actors: for Ray datasets, even if there are none, and to watch the controller."""
        unused = (DatasetsCallback, PlacementGroupCleanerCallback)
        callbacks = super()._create_default_callbacks()
        return [each for each in callbacks if not isinstance(each, unused)]

    def _initialize_and_run_controller(self, **options: Any) -> train.Result:
        register = self._on_placement_group

        class RegisteringWorkerGroup(RayWorkerGroup):
            def _create_placement_group(self, *args: Any) -> Any:
                handle = super()._create_placement_group(*args)
                register(handle.placement_group)
                return handle

        controller = TrainController(**options)
        controller.worker_group_cls = RegisteringWorkerGroup
        asyncio.run(controller.run())
        return controller.get_result()


def _process_group(resources: Resources) -> Any:
    from ray.train.torch.config import TorchConfig, _TorchBackend

    class Backend(_TorchBackend):
        def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
            worker_group.execute(use_interface_of_ray)
            super().on_start(worker_group, backend_config)

    class Config(TorchConfig):
        @property
        def backend_cls(self) -> type[Backend]:
            return Backend

    # Messages between ranks are on the CPU, hence gloo: a rank that waits for a trial in NCCL keeps its GPU busy.
    return Config(backend="cpu:gloo,cuda:nccl" if resources.gpus_per_worker else "gloo")


def use_interface_of_ray() -> None:
    """Makes gloo listen where Ray's nodes reach each other, unless $GLOO_SOCKET_IFNAME names an interface.

    By default it listens at the address of the host's own name, which Debian's installer makes a loopback address.
    """
    address = get_node_ip_address()
    for name, own in psutil.net_if_addrs().items():
        if any(each.address == address for each in own):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
