"""A Ray Train run without the processes that trials do not need, each of which takes a second or two to start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray import train
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup as RayWorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

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
        resources: of a study.
        on_placement_group: called with the workers' placement group as soon as it is requested, before they start.
        options: further arguments of ``DataParallelTrainer``.
    """

    def __init__(
        self, *args: Any, resources: Resources, on_placement_group: Callable[[PlacementGroup], object], **options: Any
    ) -> None:
        per_worker: dict[str, float] = {"CPU": resources.cpus_per_worker}
        if resources.gpus_per_worker:
            per_worker["GPU"] = resources.gpus_per_worker
        super().__init__(
            *args,
            backend_config=_process_group(resources) if resources.workers > 1 else None,
            scaling_config=train.ScalingConfig(
                num_workers=resources.workers, use_gpu=resources.gpus_per_worker > 0, resources_per_worker=per_worker
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
    from ray.train.torch import TorchConfig

    # Messages between ranks are on the CPU, hence gloo: a rank that waits for a trial in NCCL keeps its GPU busy.
    return TorchConfig(backend="cpu:gloo,cuda:nccl" if resources.gpus_per_worker else "gloo")
