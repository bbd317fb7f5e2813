"""A Ray Train run that starts no process which its trials have no use for: each costs a second or two of start."""

from __future__ import annotations

from typing import Any

from ray import train
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tutti.config.study import Resources


class WorkerGroup(DataParallelTrainer):
    """Ray Train's run of so many workers, in a process group of torch's where they are several.

    One worker needs none, and DDP would copy every gradient into its buckets; Ray Train's host and its controller then
    need not import torch either.

    Args:
        resources: of a study.
        options: what else ``DataParallelTrainer`` takes.
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
        """All but the one that starts an actor for Ray's own datasets, though there are none."""
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, DatasetsCallback)]


def _process_group(resources: Resources) -> Any:
    from ray.train.torch import TorchConfig

    # What ranks say to each other is no matter of the GPU: over NCCL, one that waits for a trial would keep it busy.
    return TorchConfig(backend="cpu:gloo,cuda:nccl" if resources.gpus_per_worker else "gloo")
