"""Which trials train the embeddings of seen words alone, and which words are seen."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from transformers import TrainingArguments

from tutti.config.training import TrainingOptions
from tutti.data.encode import EncodedPart
from tutti.modeling.model import MultiTaskModel
from tutti.modeling.seen_words import train_seen_words

_BY_NUMBER = ("adamw_torch", "adamw_torch_fused")  # each weight by its own gradients, not by those of its matrix


def leave_unseen_words(
    model: MultiTaskModel, parts: Iterable[EncodedPart], options: TrainingOptions, args: TrainingArguments
) -> None:
    """Makes weights that no batch can change no parameters, where that changes no step: not under an optimizer or an
    attack that goes by a matrix's norm, and not in shards. Weight decay leaves them as they are, too.
    """
    if options.freeze_encoder or options.adapter or options.adversarial == "awp" or args.fsdp:
        return
    if args.optim not in _BY_NUMBER:
        return
    ids = np.unique(np.concatenate([[part.pad_token_id, *np.unique(part.flat[0])] for part in parts]))
    seen = torch.zeros(int(ids[-1]) + 1, dtype=torch.bool)
    seen[torch.from_numpy(ids)] = True
    train_seen_words(model.encoder, seen)
