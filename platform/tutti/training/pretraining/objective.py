"""What a backbone learns from texts: the interface of one objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tutti.training.pretraining.batches import ALL, Share, TokenBatch

Inputs = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a batch gives.

    Attributes:
        loss: a scalar whose sum over all shares is to be minimised.
        sums: of each measure, its sum over what it is measured at, and their number: scalars, without gradient.
    """

    loss: Tensor
    sums: Mapping[str, tuple[Tensor, Tensor]]


class Objective(Protocol):
    """One way of learning from texts. ``tests/training/test_objectives.py`` passes every one.

    Attributes:
        module: all that is trained, on whatever device.
        model_type: of the backbone, as in its config.json.
    """

    module: nn.Module
    model_type: str

    def draw(self, batch: TokenBatch, share: Share = ALL) -> Inputs:
        """The tensors of a step, on the CPU. Whatever is random comes from torch's default generator.

        Draws for the whole batch, so that a row has the same masks whatever share it belongs to, and knows by how many
        tokens of all shares the losses are divided: the shares' gradients then sum up to the batch's.

        Args:
            share: whose tensors are wanted.
        """

    def outcome(self, inputs: Inputs) -> Outcome:
        """The loss and the measures of a step, from what ``draw`` gave."""

    def loss(self, means: Mapping[str, float]) -> float:
        """The loss, of the means over any number of batches."""

    def save(self, folder: Path, tokenizer: Any) -> None:
        """Writes the backbone and its tokenizer, for ``AutoModel`` and ``AutoTokenizer``, into a folder."""


def model_inputs(batch: TokenBatch, *, types: bool) -> Inputs:
    """The inputs of a model. Without padding there is no ``attention_mask``, for which kernels are faster.

    Args:
        types: whether the model knows token types.
    """
    inputs = {"input_ids": batch.ids}
    if not bool(batch.is_token.all()):
        inputs["attention_mask"] = batch.is_token.long()
    if types and batch.types is not None:
        inputs["token_type_ids"] = batch.types
    return inputs


def special_tokens(tokenizer: Any) -> Tensor:
    """``(specials,)`` int64: tokens that are never masked."""
    return torch.tensor(sorted(tokenizer.all_special_ids))
