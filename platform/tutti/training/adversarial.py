"""Small steps against the model: a second pass over the same rows with weights moved to where the loss is higher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from tutti.modeling.model import MultiTaskModel


class Attack:
    """Moves chosen parameters along their gradients while a block runs, and puts them back bit for bit.

    Args:
        epsilon: how far each is moved, in its own norm.
        relative: whether ``epsilon`` is a share of the parameter's norm.
    """

    def __init__(self, parameters: list[nn.Parameter], *, epsilon: float, relative: bool) -> None:
        self._parameters = parameters
        self._epsilon = epsilon
        self._relative = relative

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """Needs the gradients of the clean pass; those of the block are added to them."""
        moved = [weight for weight in self._parameters if weight.grad is not None]
        own = [weight.detach().clone() for weight in moved]
        with torch.no_grad():
            for weight in moved:
                assert weight.grad is not None
                size = weight.grad.norm()
                reach = weight.norm() * self._epsilon if self._relative else self._epsilon
                step = weight.grad * (reach / size.clamp(min=1e-12))
                weight.add_(torch.where(size.isfinite(), step, 0.0))
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, before in zip(moved, own, strict=True):
                    weight.copy_(before)


def make_attack(kind: str | None, model: MultiTaskModel, *, epsilon: float | None) -> Attack | None:
    """The attack of this name, or none.

    ``fgm`` (Miyato, Dai, Goodfellow 2017, arXiv 1605.07725) moves the table of word embeddings, as competitions have
    it. ``awp`` (Wu, Xia, Wang 2020, arXiv 2004.05884) moves each weight matrix of the encoder by a share of its norm;
    the step is taken with the sum of both passes' gradients, as competitions do, where the paper takes the second's.

    Args:
        epsilon: none for 1.0 of fgm and 0.01 of awp.
    """
    match kind:
        case "fgm":
            words = list(model.get_input_embeddings().parameters())
            return Attack(words, epsilon=1.0 if epsilon is None else epsilon, relative=False)
        case "awp":
            matrices = [weight for weight in model.encoder.parameters() if weight.ndim > 1]
            return Attack(matrices, epsilon=0.01 if epsilon is None else epsilon, relative=True)
    return None
