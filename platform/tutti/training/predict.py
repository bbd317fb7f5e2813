"""Probabilities of a model for the rows of one part."""

from __future__ import annotations

import numpy as np
import torch

from tutti.data.batches import TokenRows
from tutti.data.encode import EncodedPart
from tutti.modeling.model import MultiTaskModel
from tutti.training.ranks import summed


@torch.inference_mode()
def predict(
    model: MultiTaskModel,
    part: EncodedPart,
    *,
    task: str,
    batch_size: int,
    device: torch.device,
    rank: int = 0,
    world: int = 1,
) -> np.ndarray:
    """``(rows, classes)`` float32 probabilities in the order of the part's rows, the same on every rank.

    Rows are sorted by length inside, so that little is padded, and batches are shared out over ranks: with
    ``world`` > 1 every rank of the process group must call it.
    """
    probabilities = torch.zeros(len(part.ids), model.class_count(task), device=device)
    tokens = TokenRows(part)
    order = np.argsort(-part.lengths.astype(np.int64), kind="stable")
    training = model.training
    model.eval()
    for start in range(rank * batch_size, len(order), world * batch_size):
        rows = order[start : start + batch_size]
        inputs = {name: values.to(device) for name, values in tokens.pad(rows).items()}
        probabilities[torch.from_numpy(rows).to(device)] = model(task, **inputs).softmax(dim=1)
    model.train(training)
    # Every row was filled by one rank and is 0 on all others.
    return (summed(probabilities) if world > 1 else probabilities).cpu().numpy()
