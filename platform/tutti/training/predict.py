"""A model's predictions for the rows of one part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from tutti.data.batches import TokenRows
from tutti.data.flat_rows import FlatRows
from tutti.data.packing import Packing
from tutti.modeling.model import MultiTaskModel
from tutti.tasks.kinds.protocol import Kind
from tutti.training.machine.gpu import without_asking_for_padding
from tutti.training.machine.ranks import summed
from tutti.training.machine.sharding import is_sharded, reshard

if TYPE_CHECKING:
    from tutti.data.encode import EncodedPart

_WRITTEN_TOKENS = 16  # of a batch that is written, for each of one that is read: most steps read one token of a row


def likelihoods(model: MultiTaskModel, part: EncodedPart, **options: Any) -> np.ndarray:
    """``(rows, 2)`` float32: the log-likelihood of each label of a task of texts, and its number of tokens.

    Args:
        options: as of ``predict``, without ``tokenizer``.
    """
    return _predict(model, part, **options)


def answers(model: MultiTaskModel, part: EncodedPart, **options: Any) -> np.ndarray:
    """``(rows,)`` bool: whether the likeliest answer to each question is the right one.

    Answers are the first tokens of the part's targets, such as letters, and the likeliest is the one that the model
    would write next of these.

    Args:
        options: as of ``predict``, without ``tokenizer``.
    """
    assert part.targets is not None
    ids, starts, _ = part.flat
    right = ids[starts[:-1] + part.targets]
    choices = np.unique(right)
    logits = _predict(model, part, choices=torch.from_numpy(choices.astype(np.int64)), **options)
    return choices[logits.argmax(axis=1)] == right


def predict(
    model: MultiTaskModel, part: FlatRows, *, tokenizer: PreTrainedTokenizerBase | None = None, **options: Any
) -> np.ndarray:
    """The outputs of the task's kind, float32, as of ``_predict``; of pairs with a swapped order the mean of both.

    Args:
        tokenizer: of tasks of texts, whose outputs are written by it.
    """
    if model.tasks[options["task"]].kind.generative:
        from tutti.data.encode import EncodedPart
        from tutti.training.generate import generate  # not for a bundle, which writes no texts

        assert tokenizer is not None
        assert isinstance(part, EncodedPart)
        kept: dict[str, Any] = {name: options[name] for name in ("task", "device", "rank", "world") if name in options}
        if options.get("max_tokens"):  # halved where memory does not hold as many
            kept["max_tokens"] = min(_WRITTEN_TOKENS * options["max_tokens"], 2**14)
        return generate(model, part, tokenizer=tokenizer, **kept)[0]
    outputs = _predict(model, part, **options)
    return outputs if part.swapped is None else (outputs + _predict(model, part.swapped, **options)) / np.float32(2)


# Not inference_mode: autocast does not cache its casts of inference tensors, and would cast all weights for each batch.
@torch.no_grad()
def _predict(
    model: MultiTaskModel,
    part: FlatRows,
    *,
    task: str,
    batch_size: int,
    device: torch.device,
    max_tokens: int | None = None,
    rank: int = 0,
    world: int = 1,
    choices: torch.Tensor | None = None,
) -> np.ndarray:
    """The outputs of the task's kind, float32, equal on every rank; of texts ``(rows, 2)``: the log-likelihood of each
    label, and its number of tokens.

    The output is in the order of the part's rows. Internally rows are sorted by length to reduce padding, or packed
    if the model ``packs``. Batches are distributed over ranks: with ``world`` > 1 every rank of the process group
    must call it. With sharded weights all ranks compute the same number of batches.

    Args:
        batch_size: most rows of a batch, or most windows if rows have several; of packed rows their mean.
        max_tokens: most tokens of a batch, padding included; replaces ``batch_size`` if given.
        choices: ``(choices,)`` tokens, whose logits after each prompt are the outputs, ``(rows, choices)``.
    """
    outputs_of, head = model.tasks[task].outputs, model.head(task)
    generative, sequential = model.tasks[task].kind.generative, model.tasks[task].kind.sequential
    multiple = 8 if device.type == "cuda" else 1
    tokens = TokenRows(part, multiple=multiple, positions=model.positions)
    row_lengths = part.batch_lengths(apart=model.head(task).is_bi_encoder, multiple=multiple)
    order = np.argsort(-row_lengths.astype(np.int64), kind="stable")
    training = model.training
    model.eval()
    lengths = -(-row_lengths // multiple) * multiple
    packing = None
    if model.packs and len(order) and part.windows is None:
        packing = Packing.of(row_lengths, rows=batch_size, max_tokens=max_tokens, multiple=multiple)
        batches = [rows for rows in packing.divide(np.random.default_rng(0)) if len(rows)]
    else:
        batches = batches_of(order, lengths, batch_size, max_tokens, windows=part.windows)
    own_rows, own_outputs = [], []  # concatenated after the loop, so that batches are queued on a GPU without waiting
    for start in range(0, len(batches), world):
        rows = batches[start + rank] if start + rank < len(batches) else order[:0]
        if not len(rows) and not is_sharded(model):
            break
        if not len(rows):
            padded_rows = order[:1]  # keeps a sharded model in step with the other ranks; its output is dropped
        else:
            padded_rows = rows if max_tokens is None or packing else _pad_batch(rows, lengths, max_tokens)
        batch = tokens.pad(padded_rows) if packing is None else tokens.pack(padded_rows, packing)
        if generative and part.targets is not None:
            batch["places"] = torch.from_numpy(part.targets[padded_rows])
        if choices is not None:
            batch["choices"] = choices
        inputs = {name: _copy_to(device, values) for name, values in batch.items()}
        with without_asking_for_padding(None if packing else batch["attention_mask"], device):
            raw = model(task, **inputs).float()[: len(rows)]
        if sequential and len(rows):  # as wide as the batch's longest row
            absent = inputs["units"][: len(rows), :, :1] < 0
            raw = _widened(head.kind.predict(raw, outputs_of, scale=head.scale), absent, part.most_units)
        own_outputs.append(raw)
        own_rows.append(rows)
    model.train(training)
    reshard(model)
    width = len(choices) if choices is not None else 2 if generative else outputs_of
    units = (part.most_units,) if sequential else ()
    outputs = torch.zeros(len(part.lengths), *units, width, device=device)
    if any(map(len, own_rows)):
        raw = torch.cat([each for each, rows in zip(own_outputs, own_rows, strict=True) if len(rows)])
        as_is = choices is not None or sequential
        predicted = raw if as_is else head.kind.predict(raw, outputs_of, scale=head.scale)
        outputs[torch.from_numpy(np.concatenate(own_rows)).to(device)] = predicted
    # Each row is filled by one rank and 0 on all others.
    gathered = (summed(outputs) if world > 1 else outputs).cpu().numpy()
    if generative or sequential:
        return gathered
    return gathered.reshape(model.tasks[task].kind.shape(len(gathered), outputs_of))


def _widened(probabilities: torch.Tensor, absent: torch.Tensor, units: int) -> torch.Tensor:
    """As many units for all rows, NaN for those that a row does not have; what is not finite otherwise is infinite."""
    finite = torch.where(probabilities.isfinite(), probabilities, torch.inf)
    marked = finite.masked_fill(absent, torch.nan)
    return functional.pad(marked, (0, 0, 0, units - probabilities.shape[1]), value=torch.nan)


def _copy_to(device: torch.device, values: torch.Tensor) -> torch.Tensor:
    """Copies to a GPU asynchronously, from pinned memory that torch keeps until the copy is done."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def batches_of(
    order: np.ndarray, lengths: np.ndarray, rows: int, max_tokens: int | None, *, windows: np.ndarray | None
) -> list[np.ndarray]:
    """Cuts ``order``, row indices sorted from longest to shortest, into batches."""
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        if max_tokens is not None:
            count = _max_rows(lengths[order[start]], max_tokens)
        else:
            count = rows if windows is None else max(rows // int(windows[order[start : start + rows]].max()), 1)
        batches.append(order[start : start + count])
        start += count
    return batches


def _max_rows(length: int, max_tokens: int) -> int:
    """Number of rows of a batch whose longest row has ``length`` tokens."""
    return max(max_tokens // int(length), 1)


def _pad_batch(rows: np.ndarray, lengths: np.ndarray, max_tokens: int) -> np.ndarray:
    """Repeats the last row of a batch until the batch has one of eight sizes.

    The last batch of a part may have any size, and a CPU caches a compiled matrix product for each size.
    """
    most = _max_rows(lengths[rows[0]], max_tokens)
    step = -(-most // 8)
    size = min(-(-len(rows) // step) * step, most)
    return np.append(rows, np.full(size - len(rows), rows[-1]))


def are_finite(outputs: np.ndarray, kind: Kind) -> bool:
    """Whether all outputs are finite numbers, or texts; of tags, those of units that rows have."""
    if kind.sequential:  # others are NaN
        return not np.isinf(outputs).any()
    if kind.comparative:  # the second value of rows with a single text is NaN
        return bool(np.isfinite(outputs[:, 0]).all()) and not np.isinf(outputs).any()
    return outputs.dtype == object or bool(np.isfinite(outputs).all())
