"""Communication between ranks. Without a process group each function behaves as for a single rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from tutti.errors import TuttiError

Value = TypeVar("Value")
_BUCKET = 2**22  # weights whose gradients travel together, or more: a larger one is a bucket by itself


def world_size() -> int:
    """Ranks in the process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This rank, from 0; 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """Sums ``tensor`` over all ranks, in place, and returns it."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def lowest(tensor: torch.Tensor) -> torch.Tensor:
    """Takes the elementwise minimum of ``tensor`` over all ranks, in place, and returns it."""
    if world_size() > 1:
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
    return tensor


def sum_gradients(parameters: Sequence[nn.Parameter], *, flag: bool = False) -> bool:
    """Sums every gradient over all ranks, in place. Returns whether ``flag`` is set on any rank.

    Gradients travel together in buckets, and one bucket is packed while another is on its way. A parameter of which no
    rank has a gradient gets none, so that an optimizer leaves it alone.
    """
    if world_size() == 1:
        return flag
    known = torch.tensor([flag, *(each.grad is not None for each in parameters)], dtype=torch.int32)
    dist.all_reduce(known, dist.ReduceOp.MAX)
    anywhere, *has_gradient = known.tolist()
    sent = []
    for bucket in _buckets([each for each, has in zip(parameters, has_gradient, strict=True) if has]):
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
        flat = torch.cat([each.flatten() for each in gradients])
        sent.append((bucket, gradients, flat, dist.all_reduce(flat, async_op=True)))
    for bucket, gradients, flat, work in sent:
        work.wait()
        for each, gradient, total in zip(bucket, gradients, flat.split([g.numel() for g in gradients]), strict=True):
            each.grad = gradient.copy_(total.view_as(gradient))
    return bool(anywhere)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for each in parameters:
        if bucket and (each.dtype != bucket[0].dtype or sum(map(torch.numel, bucket)) >= _BUCKET):
            yield bucket
            bucket = []
        bucket.append(each)
    if bucket:
        yield bucket


def from_rank_zero(action: Callable[[], Value]) -> Value:
    """Runs ``action`` on rank 0 while the others wait; every rank gets its result.

    Raises:
        TuttiError: on every rank, the error that ``action`` raised, so that no rank waits forever.
    """
    outcome: list[Value | TuttiError | None] = [None]
    if rank() == 0:
        try:
            outcome = [action()]
        except TuttiError as error:
            if world_size() == 1:
                raise
            outcome = [error]
    if world_size() > 1:
        dist.broadcast_object_list(outcome, src=0)
    result = outcome[0]
    if isinstance(result, TuttiError):
        raise result
    return result  # type: ignore[return-value]


def together(action: Callable[[], Value]) -> Value:
    """Runs ``action`` on every rank; if it fails on any rank, all ranks raise, so that none waits for the others.

    Raises:
        TuttiError: the error of ``action`` on this rank, or else on the lowest rank where it failed.
    """
    result: Value | None = None
    failure: TuttiError | None = None
    try:
        result = action()
    except TuttiError as error:
        failure = error
    first = next((error for error in gathered(failure) if error is not None), None)
    if first is not None:
        raise failure or first
    return result  # type: ignore[return-value]


def gathered(value: Value) -> list[Value]:
    """Every rank's ``value``, in rank order."""
    if world_size() == 1:
        return [value]
    values: list[Value] = [value] * world_size()
    dist.all_gather_object(values, value)
    return values
