"""A Ray Train run without the processes that trials do not need, each of which takes a second or two to start."""

from __future__ import annotations

from typing import Any

from ray import train
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tutti.config.study import Resources


class WorkerGroup(DataParallelTrainer):
    """A Ray Train run of workers, which form a torch process group if there are several.

    A single worker needs none, and DDP would copy every gradient into its buckets. Without a group, Ray Train's host
    and controller need not import torch either.

    Args:
        resources: of a study.
        options: further arguments of ``DataParallelTrainer``.
    """

    def __init__(self, *args: Any, resources: Resources, **options: Any) -> None:
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

    def _create_default_callbacks(self) -> list[Any]:
        """All except the one for Ray datasets, which starts an actor even if there are none."""
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, DatasetsCallback)]


def _process_group(resources: Resources) -> Any:
    from ray.train.torch import TorchConfig

    # Messages between ranks are on the CPU, hence gloo: a rank that waits for a trial in NCCL keeps its GPU busy.
    return TorchConfig(backend="cpu:gloo,cuda:nccl" if resources.gpus_per_worker else "gloo")
