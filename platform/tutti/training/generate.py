"""Writes the texts of a task of texts, row by row of a part."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import GenerationMode
from transformers.utils import logging

from tutti.data.encode import EncodedPart, load_parts, load_tokenizer
from tutti.data.prepared import Prepared, is_predicted
from tutti.data.prompts import SOURCE
from tutti.errors import ConfigError, Fault, first_line, nearest
from tutti.modeling.adapters import merged
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.language_head import LanguageHead, causal_model
from tutti.modeling.model import MultiTaskModel
from tutti.tasks.kinds.text import texts_array
from tutti.tasks.task import Task
from tutti.training.machine.precision import autocast, fastest, ruled_out
from tutti.training.machine.ranks import gathered

_ROWS = 64  # of a batch at most; their keys and values are kept for each token written
_IN_ORDER = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)  # a row continues itself, as no beam does
_FEW = 16  # rows: more are only taken where padding is at most half of the batch
_SCORED = 2048  # tokens whose logits over the whole vocabulary are in memory together
_OWN = ("return_dict_in_generate", "bos_token_id", "eos_token_id", "pad_token_id")  # set here
# use_cache: training switches it off in the backbone's configuration, and each token would cost a whole row
_DEFAULTS: Mapping[str, Any] = {"max_new_tokens": 128, "do_sample": False, "use_cache": True}


def generation_config(settings: Mapping[str, Any], *, where: str = "generation") -> GenerationConfig:
    """The settings of a study file as transformers has them.

    Raises:
        ConfigError: where one is unknown or does not fit.
    """
    known = GenerationConfig().to_dict().keys() | {"max_new_tokens"}
    faults = []
    for name, value in settings.items():
        what = f"{where}.{name}"
        if name not in known:
            rule, remedy = "be a field of transformers.GenerationConfig", nearest(name, known, otherwise="take it out")
            faults.append(Fault(what, rule, repr(name), remedy))
        elif name in _OWN:
            rule = "be left out: it follows from the backbone and the task"
            faults.append(Fault(what, rule, repr(value), "take it out"))
    if "max_new_tokens" in settings and type(settings["max_new_tokens"]) is not int:
        got = repr(settings["max_new_tokens"])
        faults.append(Fault(f"{where}.max_new_tokens", "be a whole number from 1 up", got, "set it, or leave it out"))
    if faults:
        raise ConfigError(*faults)
    try:
        config = GenerationConfig(**{**_DEFAULTS, **settings})
        config.validate(strict=True)
    except (ValueError, TypeError) as error:
        got = first_line(error).rstrip(".")
        raise ConfigError(Fault(where, "be settings that fit each other", got, "correct them")) from error
    return config


# Not inference_mode: autocast does not cache its casts of inference tensors.
@torch.no_grad()
def generate(
    model: MultiTaskModel,
    part: EncodedPart,
    *,
    task: str,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    max_tokens: int = 16384,
    rank: int = 0,
    world: int = 1,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """``(rows,)`` texts, without special tokens and white space at their end, and ``(rows,)`` float32 log-probabilities
    that the model gives their tokens, the end included; equal on every rank.

    Prompts of similar length are written together: a batch is padded on the left, and ends with its longest text.
    The text of a row does not depend on its batch but for rounding, and with ``do_sample`` on the batches' order.

    Args:
        max_tokens: of a batch, those to be written included, which bounds the memory.
    """
    generation = model.tasks[task].generation
    assert generation is not None
    config = generation_config(generation.settings)
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    config.update(pad_token_id=part.pad_token_id, eos_token_id=end, bos_token_id=tokenizer.bos_token_id)
    new, room = config.max_new_tokens, getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    ids, starts, _ = part.flat
    places = np.array(part.encoded.data.column(SOURCE)).astype(np.int64)  # the length of each row's prompt
    training = model.training
    model.eval()
    head = model.head(task)
    assert isinstance(head, LanguageHead)
    writer = causal_model(model.encoder, head)
    written: dict[int, tuple[str, float]] = {}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), merged(model.encoder):
        torch.manual_seed(seed)
        for rows in _batches(places, config, max_tokens)[rank::world]:
            width = int(places[rows].max())
            config.max_new_tokens = min(new, max(room - width, 1))
            batch = torch.full((len(rows), width), part.pad_token_id, dtype=torch.int64)
            mask = torch.zeros_like(batch)
            for index, row in enumerate(rows):
                own = ids[starts[row] : starts[row] + places[row]]
                batch[index, width - len(own) :] = torch.from_numpy(own.astype(np.int64))
                mask[index, width - len(own) :] = 1
            with _quietly(), _Chances(writer) as chances:
                out = writer.generate(
                    batch.to(device), attention_mask=mask.to(device), generation_config=config, tokenizer=tokenizer
                )
            per_row = len(out) // len(rows)  # num_return_sequences, of which the first is the best
            in_order = config.get_generation_mode() in _IN_ORDER
            scores = chances.of(out[:, width:], end=end)[::per_row] if in_order else []
            out = out[::per_row]
            texts = tokenizer.batch_decode(out[:, width:].cpu(), skip_special_tokens=True)
            if not in_order:
                scores = _log_probabilities(model, task, out, mask.to(device), end=end)
            written |= {int(row): (text.rstrip(), own) for row, text, own in zip(rows, texts, scores, strict=True)}
    model.train(training)
    if world > 1:
        written = {row: each for of_rank in gathered(written) for row, each in of_rank.items()}
    found = [written[row] for row in range(len(places))]
    return texts_array([text for text, _ in found]), np.array([score for _, score in found], dtype=np.float32)


class _Chances:
    """The log-probabilities of tokens as a causal model writes them, where its rows keep their order."""

    def __init__(self, writer: PreTrainedModel) -> None:
        self._writer, self._logits = writer, torch.empty(0)
        self._steps: list[torch.Tensor] = []

    def __enter__(self) -> Self:
        before = self._writer.register_forward_pre_hook(self._chosen, with_kwargs=True)
        self._hooks = [before, self._writer.register_forward_hook(self._offered)]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _chosen(self, _: nn.Module, __: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        if len(self._logits):  # the prompts are no choice
            self._take(inputs["input_ids"][:, -1])

    def _offered(self, _: nn.Module, __: tuple[Any, ...], outputs: Any) -> None:
        self._logits = outputs.logits[:, -1].float()

    def _take(self, tokens: torch.Tensor) -> None:
        self._steps.append(self._logits.gather(1, tokens[:, None])[:, 0] - self._logits.logsumexp(1))

    def of(self, tokens: torch.Tensor, *, end: int) -> list[float]:
        """For each row of the ``(rows, tokens)`` that were written, the sum up to its first end."""
        self._take(tokens[:, -1])
        return (torch.stack(self._steps, dim=1) * ~_after_end(tokens, end)).sum(dim=1).tolist()


def _after_end(tokens: torch.Tensor, end: int) -> torch.Tensor:
    """``(rows, tokens)``: whether an end stands before the token."""
    ends = (tokens == end).int()
    return ends.cumsum(dim=1) - ends > 0


def _log_probabilities(
    model: MultiTaskModel, task: str, out: torch.Tensor, mask: torch.Tensor, *, end: int
) -> list[float]:
    """Of the tokens after the prompts up to the first end, of ``(rows, tokens)`` prompts and texts.

    Args:
        mask: ``(rows, width)``, of the prompts.
    """
    width = mask.shape[1]
    whole = torch.cat([mask, (~_after_end(out[:, width:], end)).to(mask.dtype)], dim=1)
    places = torch.full((len(out),), width, dtype=torch.int64, device=out.device)
    step = max(_SCORED // max(out.shape[1] - width, 1), 1)
    scores: list[float] = []
    for start in range(0, len(out), step):
        rows = slice(start, start + step)
        scores += (-model(task, out[rows], whole[rows], places=places[rows])[:, 0].float()).tolist()
    return scores


def _batches(lengths: np.ndarray, config: GenerationConfig, max_tokens: int) -> list[np.ndarray]:
    """Rows by length, the longest first, cut so that no batch has more tokens than allowed (or else one row) or, with
    more than a few rows, is mostly padding."""
    order, batches, start = np.argsort(-lengths, kind="stable"), [], 0
    copies = max(config.num_beams or 1, config.num_return_sequences or 1)
    new = config.max_new_tokens or _DEFAULTS["max_new_tokens"]
    while start < len(order):
        rows = lengths[order[start : start + _ROWS]] + new
        alike = max(int((rows >= rows[0] / 2).sum()), _FEW)
        count = min(max(max_tokens // (int(rows[0]) * copies), 1), alike)
        batches.append(order[start : start + count])
        start += count
    return batches


@contextmanager
def _quietly() -> Iterator[None]:
    """Silences transformers' advice on settings, once for each batch."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def texts_under(
    checkpoint: Path,
    task: Task,
    tried: Sequence[Mapping[str, Any]],
    *,
    prepared: Prepared,
    cache: Path,
    training: Mapping[str, Any],
) -> Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """What a checkpoint writes under each settings of generation in turn, on a GPU where there is one.

    Args:
        cache: of encoded texts.
        training: of the study file, whose precision is not used where it has ruled it out.

    Yields:
        By part of the rows that are predicted ``(rows,)`` texts and ``(rows,)`` float32 log-probabilities.
    """
    assert task.generation is not None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, metadata = load_checkpoint(checkpoint, device=device)
    model.to(device)
    parts = load_parts(prepared, tokenizer=str(checkpoint), limit=metadata.limit, cache=cache)[task.name]
    tokenizer = load_tokenizer(str(checkpoint))
    precision = fastest(device, model_type=model.config.model_type, training=ruled_out(training))
    for settings in tried:
        model.tasks[task.name] = task.written_under(settings)
        texts, scores = {}, {}
        for name, part in parts.items():
            if is_predicted(name):
                with autocast(device, precision):
                    texts[name], scores[name] = generate(
                        model, part, task=task.name, tokenizer=tokenizer, device=device
                    )
        yield texts, scores
