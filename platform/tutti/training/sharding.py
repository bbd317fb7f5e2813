"""FSDP2: every rank keeps a shard of each weight, and gathers a layer whole for as long as it computes it.

Accelerate does the sharding (``torch.distributed.fsdp.fully_shard``, the design of Zhao et al. 2023, arXiv 2304.11277).
Here is what Tutti needs around it: tensors of which each rank has a shard, and back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.state import DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import Trainer, TrainingArguments

from tutti.training.ranks import rank


def keep_full_precision(args: TrainingArguments) -> None:
    """Weights are gathered and gradients summed in float32, and layers compute in autocast, as with whole weights.

    What accelerate would choose for bf16 casts the heads too, and rounds gradients before they are summed.
    """
    if args.fsdp_plugin_args is not None:
        args.fsdp_plugin_args["mixed_precision_policy"] = MixedPrecisionPolicy()


def shard_on_cpu(trainer: Trainer) -> None:
    """Switches FSDP on where accelerate leaves it out without a word: between processes on CPUs."""
    state = trainer.accelerator.state
    if trainer.args.fsdp_plugin_args is not None and state.distributed_type is DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**trainer.args.fsdp_plugin_args)
        trainer.is_fsdp_enabled = True


def forget_sharding() -> None:
    """Takes back the switch that accelerate leaves in the environment, where the next trainer would find it."""
    os.environ.pop("ACCELERATE_USE_FSDP", None)


def is_sharded(model: nn.Module) -> bool:
    """Whether every rank must compute whenever one does, since it lends its shards."""
    return isinstance(model, FSDPModule)


def reshard(model: nn.Module) -> None:
    """Lets go of what a forward pass gathered and no backward pass gave back; does nothing without shards.

    Until then a module's parameters are whole ones that the optimizer does not know, and what is written into their
    shards meanwhile is not what the next pass computes with.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def own_shard(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor: the same memory; of one that is not sharded the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def copy_whole(tensor: Tensor, whole: Tensor) -> None:
    """Fills a tensor, or this rank's shard of it, from the whole one. Ranks need not call it together."""
    if isinstance(tensor, DTensor):
        moved = whole.to(device=tensor.device, dtype=tensor.dtype)
        whole = distribute_tensor(moved, tensor.device_mesh, tensor.placements, src_data_rank=None).to_local()
    own_shard(tensor).copy_(whole)


def whole_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` with its sharded tensors put together, one after the other: on rank 0, on the CPU.

    Every rank must call it. On the others the sharded ones are left out.
    """
    found = {}
    for name, tensor in state.items():
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor()
            if rank() > 0:
                continue
            tensor = tensor.cpu()
        found[name] = tensor.contiguous()
    return found


def whole_optimizer_state(trainer: Trainer) -> dict[str, Any] | None:
    """The optimizer's state by the weights' names, on rank 0; none where it is not sharded. Every rank must call it.

    It is what accelerate reads back where a trainer goes on from a folder with it.
    """
    if not trainer.is_fsdp_enabled:
        return None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_optimizer_state_dict(trainer.model, trainer.optimizer, options=options)


@torch.no_grad()
def lerp(averages: Sequence[Tensor], weights: Sequence[Tensor], share: float) -> None:
    """Moves each average towards its weight by ``share`` of the way, shard by shard."""
    own = [own_shard(weight.detach()).float() for weight in weights]
    torch._foreach_lerp_([own_shard(average) for average in averages], own, share)
