"""FSDP2: each rank holds a shard of every weight and gathers a layer's full weights only while computing it.

Accelerate does the sharding (``torch.distributed.fsdp.fully_shard``, the design of Zhao et al. 2023, arXiv 2304.11277).
This module converts between full tensors and shards, for saving, loading and averaging.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor

from tutti.training.machine.ranks import rank

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments


def keep_full_precision(args: TrainingArguments) -> None:
    """Gathers weights and sums gradients in float32, with layers in autocast, as without sharding.

    Accelerate's default policy for bf16 would cast the heads too, and round gradients before they are summed.
    """
    if args.fsdp_plugin_args is not None:
        args.fsdp_plugin_args["mixed_precision_policy"] = MixedPrecisionPolicy()


def shard_on_cpu(trainer: Trainer) -> None:
    """Enables FSDP between processes on CPUs, where accelerate silently ignores it."""
    from accelerate.state import DistributedType
    from accelerate.utils import FullyShardedDataParallelPlugin

    state = trainer.accelerator.state
    if trainer.args.fsdp_plugin_args is not None and state.distributed_type is DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**trainer.args.fsdp_plugin_args)
        trainer.is_fsdp_enabled = True


def forget_sharding() -> None:
    """Removes the environment variable that accelerate leaves set, which would enable FSDP for the next trainer."""
    os.environ.pop("ACCELERATE_USE_FSDP", None)


def is_sharded(model: nn.Module) -> bool:
    """Whether weights are sharded, so that all ranks must run each forward pass together."""
    return isinstance(model, FSDPModule)


def reshard(model: nn.Module) -> None:
    """Frees the full weights that remain gathered after a forward pass without backward; no effect without shards.

    Until then a module's parameters are the full tensors, unknown to the optimizer, and the next pass would ignore
    values written into the shards.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def own_shard(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, sharing its memory; an unsharded tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def copy_whole(tensor: Tensor, whole: Tensor) -> None:
    """Copies the full tensor ``whole`` into a tensor or this rank's shard of it. Ranks need not call it together."""
    if isinstance(tensor, DTensor):
        converted = whole.to(device=tensor.device, dtype=tensor.dtype)
        whole = distribute_tensor(converted, tensor.device_mesh, tensor.placements, src_data_rank=None).to_local()
    own_shard(tensor).copy_(whole)


def whole_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` with each sharded tensor gathered in turn, on rank 0 and on the CPU.

    Every rank must call it. On other ranks the result lacks the sharded tensors.
    """
    gathered = {}
    for name, tensor in state.items():
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor()
            if rank() > 0:
                continue
            tensor = tensor.cpu()
        gathered[name] = tensor.contiguous()
    return gathered


def whole_optimizer_state(trainer: Trainer) -> dict[str, Any] | None:
    """The optimizer state by parameter name, on rank 0; None without sharding. Every rank must call it.

    Accelerate reads it back when a trainer resumes from a folder that contains it.
    """
    if not trainer.is_fsdp_enabled:
        return None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_optimizer_state_dict(trainer.model, trainer.optimizer, options=options)


@torch.no_grad()
def lerp(averages: Sequence[Tensor], weights: Sequence[Tensor], fraction: float) -> None:
    """Interpolates each average towards its weight by ``fraction``, shard by shard, in place."""
    weight_shards = [own_shard(weight.detach()).float() for weight in weights]
    torch._foreach_lerp_([own_shard(average) for average in averages], weight_shards, fraction)
