"""The model that a stage of a training begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, TrainingArguments

from tutti.config.training import TrainingOptions
from tutti.data.encode import EncodedPart
from tutti.errors import Fault, TrialError
from tutti.modeling.adapters import adapter_of
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.decoders import is_decoder
from tutti.modeling.heads import HeadOptions
from tutti.modeling.layers import reinitialise
from tutti.modeling.mixout import add_mixout
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.modeling.verbalizer import start_from_words
from tutti.tasks.task import Task
from tutti.training.keys.arguments import machine_faults
from tutti.training.machine.precision import name_of


def stage_model(
    start: Path | None,
    *,
    backbone: str,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[Task],
    parts: Mapping[str, EncodedPart],
    options: TrainingOptions,
    args: TrainingArguments,
    only_stage: bool,
) -> MultiTaskModel:
    """The model of the first stage, from the backbone, or of a later one, from its saved initial weights.

    Args:
        start: the initial weights, a checkpoint; None for the first stage.
        parts: the training rows of each task.

    Raises:
        BackboneError, StorageError: if the backbone or the checkpoint does not load.
        TrialError: if the options do not fit the encoder.
    """
    if start is None:
        model = _first_model(backbone, tokenizer, tasks, parts, options, args)
    else:
        model, _ = load_checkpoint(start, device=args.device, attn_implementation=options.attn_implementation)
    if options.mixout and not options.freeze_encoder:
        new_layers = options.reinit_layers if start is None else 0
        if not add_mixout(model.encoder, share=options.mixout, new_layers=new_layers) and only_stage:
            rule = "be 0 where all layers start anew: no linear layer is left to put back to its value before"
            got, remedy = f"{options.mixout} with {options.reinit_layers} reinit_layers", "lower reinit_layers"
            raise TrialError(Fault("the training key mixout", rule, got, remedy))
    if options.freeze_encoder:
        model.encoder.requires_grad_(False)
    return model


def _first_model(
    backbone: str,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[Task],
    parts: Mapping[str, EncodedPart],
    options: TrainingOptions,
    args: TrainingArguments,
) -> MultiTaskModel:
    adapter = adapter_of(options, precision=name_of(args))
    attention = options.attn_implementation
    encoder = load_encoder(
        backbone, adapter=adapter, device=args.device, attn_implementation=attention, pooler=options.pooling == "pooler"
    )
    heads = HeadOptions(
        pooling=options.pooling or ("last" if is_decoder(encoder.config) else "attention"),
        layers=options.pooling_layers,
        pooling_dropout=options.pooling_dropout,
        dropout=options.head_dropout,
        dropout_samples=options.head_dropout_samples,
        ordered=options.ordered_head,
        tags=options.tag_head,
        pairs=options.pair_loss,
        choices="letters" if options.head == "verbalizer" else "inputs",
        word_pooling=options.word_pooling or ("last" if is_decoder(encoder.config) else "first"),
    )
    with machine_faults(ValueError):
        if options.reinit_layers:
            reinitialise(encoder, options.reinit_layers)
    model = MultiTaskModel(encoder=encoder, tasks=tasks, heads=heads, adapter=adapter, backbone=backbone)
    if options.head == "verbalizer":
        start_from_words(model, backbone, options.words, tokenizer)
    for task in tasks:
        if task.kind.generative:
            continue
        part = parts[task.name]
        model.head(task.name).fit_labels(torch.from_numpy(part.labels), torch.from_numpy(part.weights))
    return model
