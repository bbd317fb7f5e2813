"""The few things ranks say to each other. In a plain process each is the obvious thing for one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from tutti.errors import TuttiError

Value = TypeVar("Value")


def world_size() -> int:
    """Ranks in the process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This rank, from 0; 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, summed in place over all ranks."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def lowest(tensor: torch.Tensor) -> torch.Tensor:
    """The least ``tensor`` of all ranks, in place, element by element."""
    if world_size() > 1:
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
    return tensor


def from_rank_zero(action: Callable[[], Value]) -> Value:
    """Runs ``action`` on rank 0 while the others wait; every rank gets its result.

    Raises:
        TuttiError: on every rank, the one that ``action`` raised, so that none waits for ever.
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
    """Runs ``action`` on every rank; where it fails on one, every rank gets the first one's error, so that none waits.

    Raises:
        TuttiError: what ``action`` raised on the lowest rank on which it did.
    """
    result: Value | None = None
    failure: TuttiError | None = None
    try:
        result = action()
    except TuttiError as error:
        failure = error
    first = next((found for found in gathered(failure) if found is not None), None)
    if first is not None:
        raise failure or first
    return result  # type: ignore[return-value]


def gathered(value: Value) -> list[Value]:
    """Every rank's ``value``, in the order of ranks."""
    if world_size() == 1:
        return [value]
    values: list[Value] = [value] * world_size()
    dist.all_gather_object(values, value)
    return values
