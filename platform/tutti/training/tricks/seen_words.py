"""Decides which trials train only the embeddings of words that occur in their training rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from transformers import TrainingArguments

from tutti.config.training import TrainingOptions
from tutti.data.encode import EncodedPart
from tutti.modeling.model import MultiTaskModel
from tutti.modeling.seen_words import train_seen_words

_ELEMENTWISE = ("adamw_torch", "adamw_torch_fused")  # optimizers that update each weight from its own gradients only


def exclude_unseen_words(
    model: MultiTaskModel, parts: Iterable[EncodedPart], options: TrainingOptions, args: TrainingArguments
) -> None:
    """Removes the embedding rows of unseen tokens from the trainable parameters, where that changes no step.

    Does nothing with an optimizer or an attack that uses a whole matrix's norm, or with sharded weights. Excluded rows
    get no weight decay either.
    """
    if options.freeze_encoder or options.adapter or options.adversarial == "awp" or args.fsdp:
        return
    if any(task.kind.generative for task in model.tasks.values()):  # a softmax over all words moves each of them
        return
    if args.optim not in _ELEMENTWISE:
        return
    ids = np.unique(np.concatenate([[part.pad_token_id, *np.unique(part.flat[0])] for part in parts]))
    seen = torch.zeros(int(ids[-1]) + 1, dtype=torch.bool)
    seen[torch.from_numpy(ids)] = True
    train_seen_words(model.encoder, seen)
