"""What a model says of the rows of one part."""

from __future__ import annotations

import numpy as np
import torch

from tutti.data.batches import TokenRows
from tutti.data.encode import EncodedPart
from tutti.modeling.model import MultiTaskModel
from tutti.training.ranks import summed
from tutti.training.sharding import is_sharded, reshard


# Not inference_mode: in it autocast keeps no weight that it has cast, and casts all of them anew for each batch.
@torch.no_grad()
def predict(
    model: MultiTaskModel,
    part: EncodedPart,
    *,
    task: str,
    batch_size: int,
    device: torch.device,
    max_tokens: int | None = None,
    rank: int = 0,
    world: int = 1,
) -> np.ndarray:
    """``(rows, classes)`` float32 probabilities, or ``(rows,)`` values of a regression, the same on every rank.

    They are in the order of the part's rows.

    Rows are sorted by length inside, so that little is padded, and batches are shared out over ranks: with
    ``world`` > 1 every rank of the process group must call it. Ranks that lend each other shards of the weights go
    through equally many batches.

    Args:
        max_tokens: of a batch, padding included; it then decides how many rows a batch has.
    """
    regression = model.tasks[task].regression
    multiple = 8 if device.type == "cuda" else 1
    tokens = TokenRows(part, multiple=multiple, positions=model.positions)
    order = np.argsort(-part.lengths.astype(np.int64), kind="stable")
    training = model.training
    model.eval()
    lengths = -(-part.lengths // multiple) * multiple
    batches = _batches(order, lengths, batch_size, max_tokens)
    mine, outputs = [], []  # put together after all batches: the GPU is given the next one while it computes
    for turn in range(0, len(batches), world):
        rows = batches[turn + rank] if turn + rank < len(batches) else order[:0]
        if not len(rows) and not is_sharded(model):
            break
        shape = order[:1] if not len(rows) else rows if max_tokens is None else _filled_up(rows, lengths, max_tokens)
        inputs = {name: _on(device, values) for name, values in tokens.pad(shape).items()}
        outputs.append(model(task, **inputs).float()[: len(rows)])
        mine.append(rows)
    model.train(training)
    reshard(model)
    said = torch.zeros(len(part.ids), model.tasks[task].outputs, device=device)
    if mine:
        values = torch.cat(outputs)
        said[torch.from_numpy(np.concatenate(mine)).to(device)] = values if regression else values.softmax(dim=1)
    # Every row was filled by one rank and is 0 on all others.
    found = (summed(said) if world > 1 else said).cpu().numpy()
    return found[:, 0] if regression else found


def _on(device: torch.device, values: torch.Tensor) -> torch.Tensor:
    """A GPU is not waited for: it copies from pinned memory, which torch keeps until that is done."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def _batches(order: np.ndarray, lengths: np.ndarray, rows: int, max_tokens: int | None) -> list[np.ndarray]:
    """``order``, the longest row first, cut into batches."""
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        count = rows if max_tokens is None else _most(lengths[order[start]], max_tokens)
        batches.append(order[start : start + count])
        start += count
    return batches


def _most(length: int, max_tokens: int) -> int:
    """Rows of a batch whose longest has so many tokens."""
    return max(max_tokens // int(length), 1)


def _filled_up(rows: np.ndarray, lengths: np.ndarray, max_tokens: int) -> np.ndarray:
    """A batch, with its last row once more as often as it takes to have one of eight sizes.

    What is left of a part at its end may be of any size, and a CPU keeps a compiled product for each that it has met.
    """
    most = _most(lengths[rows[0]], max_tokens)
    size = min(-(-len(rows) // -(-most // 8)) * -(-most // 8), most)
    return np.append(rows, np.full(size - len(rows), rows[-1]))
