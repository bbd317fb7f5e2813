"""Adversarial training: a second pass over the same batch with weights perturbed to increase the loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from tutti.modeling.model import MultiTaskModel
from tutti.training.tricks.averages import restored


class Attack:
    """Perturbs parameters along their gradients within a block, then restores them bit for bit.

    Args:
        epsilon: L2 norm of each parameter's perturbation.
        relative: whether ``epsilon`` is a fraction of the parameter's own norm.
    """

    def __init__(self, parameters: list[nn.Parameter], *, epsilon: float, relative: bool) -> None:
        self._parameters = parameters
        self._epsilon = epsilon
        self._relative = relative

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """Requires the gradients of the clean pass; the gradients of the block accumulate onto them."""
        perturbed = [weight for weight in self._parameters if weight.grad is not None]
        with restored(perturbed):
            with torch.no_grad():
                for weight in perturbed:
                    assert weight.grad is not None
                    grad_norm = weight.grad.norm()
                    radius = weight.norm() * self._epsilon if self._relative else self._epsilon
                    step = weight.grad * (radius / grad_norm.clamp(min=1e-12))
                    weight.add_(torch.where(grad_norm.isfinite(), step, 0.0))
            yield


def make_attack(kind: str | None, model: MultiTaskModel, *, epsilon: float | None) -> Attack | None:
    """The attack with this name, or None.

    ``fgm`` (Miyato, Dai, Goodfellow 2017, arXiv 1605.07725) perturbs the word embedding table, as is usual in
    competitions. ``awp`` (Wu, Xia, Wang 2020, arXiv 2004.05884) perturbs each weight matrix of the encoder relative to
    its norm. The optimizer step uses the sum of both passes' gradients, as is usual in competitions; the paper uses
    only the second pass's gradients.

    Args:
        epsilon: None for the default: 1.0 for fgm, 0.01 for awp.
    """
    match kind:
        case "fgm":
            embeddings = list(model.get_input_embeddings().parameters())
            return Attack(embeddings, epsilon=1.0 if epsilon is None else epsilon, relative=False)
        case "awp":
            matrices = [weight for weight in model.encoder.parameters() if weight.ndim > 1]
            return Attack(matrices, epsilon=0.01 if epsilon is None else epsilon, relative=True)
    return None
