"""Small steps against the model: a second pass over the same rows with weights moved to where the loss is higher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from tutti.modeling.model import MultiTaskModel


class _Attack:
    """Moves chosen parameters while a block runs, and puts them back bit for bit."""

    def __init__(self, parameters: list[nn.Parameter], *, epsilon: float) -> None:
        self._parameters = parameters
        self._epsilon = epsilon

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """Needs the gradients of the clean pass; those of the block are added to them."""
        moved = [weight for weight in self._parameters if weight.grad is not None]
        own = [weight.detach().clone() for weight in moved]
        with torch.no_grad():
            for weight in moved:
                assert weight.grad is not None
                size = weight.grad.norm()
                step = weight.grad * (self._reach(weight) / size.clamp(min=1e-12))
                weight.add_(torch.where(size.isfinite(), step, 0.0))
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, before in zip(moved, own, strict=True):
                    weight.copy_(before)

    def _reach(self, weight: nn.Parameter) -> torch.Tensor | float:
        """How far a parameter is moved, in its own norm."""
        raise NotImplementedError


class FastGradient(_Attack):
    """FGM (Miyato, Dai, Goodfellow 2017, arXiv 1605.07725), on the table of word embeddings as competitions have it:
    ``epsilon * gradient / norm of the gradient`` is added to it.
    """

    def __init__(self, model: MultiTaskModel, *, epsilon: float) -> None:
        super().__init__(list(model.get_input_embeddings().parameters()), epsilon=epsilon)

    def _reach(self, weight: nn.Parameter) -> float:
        return self._epsilon


class WeightPerturbation(_Attack):
    """AWP (Wu, Xia, Wang 2020, arXiv 2004.05884): each weight matrix of the encoder is moved along its gradient by
    ``epsilon`` times its own norm. The step is taken with the sum of both passes' gradients, as competitions do; the
    paper takes the second's alone.
    """

    def __init__(self, model: MultiTaskModel, *, epsilon: float) -> None:
        super().__init__([weight for weight in model.encoder.parameters() if weight.ndim > 1], epsilon=epsilon)

    def _reach(self, weight: nn.Parameter) -> torch.Tensor:
        return weight.detach().norm() * self._epsilon


ATTACKS: Mapping[str, tuple[Callable[..., _Attack], float]] = {
    "fgm": (FastGradient, 1.0),
    "awp": (WeightPerturbation, 0.01),
}


def make_attack(kind: str | None, model: MultiTaskModel, *, epsilon: float | None) -> _Attack | None:
    """``fgm``, ``awp``, or none; ``epsilon`` none takes the kind's own."""
    if kind is None:
        return None
    made, own = ATTACKS[kind]
    return made(model, epsilon=own if epsilon is None else epsilon)
