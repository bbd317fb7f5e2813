"""FSDP2 for pretraining: each rank holds a share of every layer, and gathers a layer while it computes it.

Layers are sharded one by one (``torch.distributed.fsdp.fully_shard``, arXiv 2304.11277), with their gradients and the
optimizer's state. What is tied, the tables of tokens and the heads, stays whole on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from tutti.training.machine.ranks import sum_gradients, summed, world_size
from tutti.training.machine.sharding import copy_whole, own_shard, whole_state


def shard(module: nn.Module) -> None:
    """Shares out every layer of a module among the ranks of the process group."""
    from torch.distributed.device_mesh import init_device_mesh

    device = next(module.parameters()).device.type
    mesh = init_device_mesh(device, (world_size(),))
    blocks = [each for layers in module.modules() if isinstance(layers, nn.ModuleList) for each in layers]
    for block in reversed(blocks):  # inner ones first
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh, reshard_after_forward=True)


def is_shard(parameter: Tensor) -> bool:
    return isinstance(parameter, DTensor)


def sum_all(parameters: Sequence[nn.Parameter], *, flag: bool) -> bool:
    """As ``sum_gradients``, where FSDP has already taken the mean of the gradients of shards."""
    for each in parameters:
        if is_shard(each) and each.grad is not None:
            each.grad.mul_(world_size())
    return sum_gradients([each for each in parameters if not is_shard(each)], flag=flag)


def clip(parameters: Sequence[nn.Parameter], most: float) -> None:
    """Clips gradients by their norm over all parameters, shards included."""
    if not any(map(is_shard, parameters)):
        nn.utils.clip_grad_norm_(parameters, most)
        return
    gradients: dict[bool, list[Tensor]] = {False: [], True: []}
    for each in parameters:
        if each.grad is not None:
            gradients[is_shard(each)].append(own_shard(each.grad))
    squares = {
        kind: sum((each.float().square().sum() for each in own), start=torch.zeros(()))
        for kind, own in gradients.items()
    }
    norm = (squares[False] + summed(squares[True])).sqrt()
    torch._foreach_mul_([*gradients[False], *gradients[True]], (most / (norm + 1e-6)).clamp(max=1.0))


def whole_states(module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of both with full tensors, on rank 0. Every rank calls it together."""
    whole = optimizer.state_dict()
    whole["state"] = {number: whole_state(each) for number, each in whole["state"].items()}
    return whole_state(module.state_dict()), whole


@torch.no_grad()
def load_whole(
    module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Tensor], of_optimizer: dict[str, Any]
) -> None:
    """Loads what ``whole_states`` gave on rank 0, whatever the number of ranks is now."""
    own = module.state_dict()
    if not any(map(is_shard, own.values())):
        module.load_state_dict(state)
        optimizer.load_state_dict(of_optimizer)
        return
    for name, tensor in own.items():
        copy_whole(tensor, state[name])
    optimizer.load_state_dict(of_optimizer)
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(parameter, DTensor) and value.shape == parameter.shape:
                mesh, placements = parameter.device_mesh, parameter.placements
                values[name] = distribute_tensor(value, mesh, placements, src_data_rank=None)
