"""Linear-chain conditional random fields (Lafferty, McCallum, Pereira 2001) over the tags of entities.

Scores are ``(rows, units, tags)`` float32, the units of a row first; ``lengths`` ``(rows,)`` says how many it has. The
transitions are ``(tags + 2, tags)``: from each tag, at the beginning of a row, and at its end.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NEVER = -1e4  # a score that no path comes back from, and which float32 can still add up


def new_transitions(tags: int, *, marks: bool = True) -> Tensor:
    """Zeros, and for an I that follows no tag of its type a score that excludes it: see ``tasks.kinds.entities``.

    Args:
        marks: whether tags mark spans; otherwise each may follow any other.
    """
    transitions = torch.zeros(tags + 2, tags)
    for inner in range(2, tags if marks else 0, 2):
        before = torch.ones(tags + 2, dtype=torch.bool)
        before[[inner - 1, inner, tags + 1]] = False
        transitions[before, inner] = _NEVER
    return transitions


def log_partition(scores: Tensor, lengths: Tensor, transitions: Tensor) -> Tensor:
    """``(rows,)``: the logarithm of the sum over all paths of the exponential of their scores; 0 without units."""
    tags = scores.shape[2]
    between, begin, end = transitions[:tags], transitions[tags], transitions[tags + 1]
    total = begin + scores[:, 0]
    for unit in range(1, scores.shape[1]):
        following = torch.logsumexp(total.unsqueeze(2) + between, dim=1) + scores[:, unit]
        total = torch.where((lengths > unit).unsqueeze(1), following, total)
    return torch.where(lengths > 0, torch.logsumexp(total + end, dim=1), 0.0)


def negative_log_likelihood(scores: Tensor, labels: Tensor, lengths: Tensor, transitions: Tensor) -> Tensor:
    """``(rows,)``: of the labels, summed over all paths that have them where some tags are not known.

    Args:
        labels: ``(rows, units)`` int64; below 0 what is not known.
    """
    other = torch.arange(scores.shape[2], device=scores.device) != labels.unsqueeze(2)
    constrained = scores.masked_fill(other & (labels >= 0).unsqueeze(2), _NEVER)
    return log_partition(scores, lengths, transitions) - log_partition(constrained, lengths, transitions)


def marginals(scores: Tensor, lengths: Tensor, transitions: Tensor) -> Tensor:
    """``(rows, units, tags)``: the probability of each tag of each unit over all paths, which is the derivative of the
    partition by the scores.
    """
    with torch.enable_grad(), torch.autocast(scores.device.type, enabled=False):
        leaf = scores.detach().float().requires_grad_()
        partition = log_partition(leaf, lengths, transitions.detach().float()).sum()
        return torch.autograd.grad(partition, leaf)[0]
