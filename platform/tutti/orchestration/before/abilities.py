"""The abilities of a backbone, and whether a study asks for more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from tutti.config.conditions import written
from tutti.config.possible import possible_values, stages_of
from tutti.config.study import StudyConfig
from tutti.config.training import TrainingOptions
from tutti.errors import BackboneError, ConfigError, Fault, TrialError
from tutti.tasks.kinds.choice import letters
from tutti.tasks.kinds.registry import KINDS

_PROBE = "a b c d"  # a text that a backbone is tried on


@dataclass(frozen=True)
class Abilities:
    """The capabilities of a backbone.

    Attributes:
        positions: maximum input length in tokens; none if unlimited.
        layers: number of last layers that heads can mix; none if unknown.
        own_layers: number of layers with weights of their own, in one module list: 1 if all share them, as in ALBERT.
        marks_pairs: whether its tokenizer marks the second text's tokens with token type ids.
        starts_special: whether its tokenizer puts a special token such as ``[CLS]`` first.
        checkpoints_activations: whether it can compute activations anew in the backward pass.
        linear_layers: whether its layers hold ``nn.Linear`` modules, unlike SqueezeBERT's, which hold convolutions.
        half_precision: whether it can be computed in bf16 and fp16, unlike DeBERTa's first version.
        embeds_words: whether it has a table of words, unlike CANINE, which hashes characters.
        decoder: whether it reads from left to right.
        linear_names: the names of its linear layers, such as ``q_proj``, which adapters change.
        tokens: number of token ids that it has embeddings of; none if it takes any.
        token_types: number of token types that it has embeddings of; none if it takes any.
        packs: whether its attention keeps packed rows apart, as far as is known without a decoder's weights.
    """

    positions: int | None
    layers: int | None
    own_layers: int
    marks_pairs: bool
    starts_special: bool
    checkpoints_activations: bool
    linear_layers: bool
    half_precision: bool
    embeds_words: bool
    tokens: int | None
    token_types: int | None
    decoder: bool = False
    linear_names: frozenset[str] = frozenset()
    packs: bool = True


def abilities_of(backbone: str, *, begun: bool = False) -> Abilities:
    """Loads the backbone, which reports an unusable one early and downloads one from the hub only once.

    Args:
        begun: whether a study has begun with it, by an earlier version perhaps, and can only go on: it is not tried.

    Raises:
        BackboneError: if the backbone or its tokenizer does not load, or the backbone does not compute texts.
    """
    from tutti.data.encode import load_tokenizer
    from tutti.data.special_tokens import marks_second_text, starts_special
    from tutti.modeling.adapters import linear_layers
    from tutti.modeling.decoders import is_decoder
    from tutti.modeling.layers import has_linear_layers, own_layers, token_types, tokens
    from tutti.modeling.model import load_encoder
    from tutti.modeling.packed import keeps_rows_apart
    from tutti.modeling.positions import positions
    from tutti.modeling.probe import probed_layers
    from tutti.training.machine.precision import runs_in_half_precision

    encoder, tokenizer = load_encoder(backbone, weightless=True), load_tokenizer(backbone)
    known, decoder = tokens(encoder), is_decoder(encoder.config)
    longest = getattr(encoder.config, "max_position_embeddings", None) if decoder else None
    # A tokenizer without special tokens may know none of the letters, and the encoder not all that it gives for them.
    ids = [number for number in tokenizer(_PROBE)["input_ids"] if known is None or number < known] or [0]
    return Abilities(
        positions=positions(encoder) or longest,
        layers=None if begun else probed_layers(backbone, encoder, ids),
        own_layers=own_layers(encoder),
        marks_pairs=marks_second_text(tokenizer),
        starts_special=starts_special(tokenizer),
        checkpoints_activations=encoder.supports_gradient_checkpointing,
        linear_layers=has_linear_layers(encoder),
        half_precision=runs_in_half_precision(encoder.config.model_type),
        embeds_words=known is not None,
        tokens=known,
        token_types=token_types(encoder),
        decoder=decoder,
        linear_names=frozenset(name.rpartition(".")[2] for name in linear_layers(encoder)),
        packs=begun or decoder or keeps_rows_apart(encoder),
    )


def check_backbone(study: StudyConfig, abilities: Abilities, *, begun: bool) -> None:
    """Rejects settings that the backbone cannot handle, before a trial fails when it is built or at a long row.

    Raises:
        ConfigError: with a fault for each training key, or key of the search space if that varies it.
    """
    from tutti.modeling.adapters import target_fault

    limits = {
        "max_length": (abilities.positions, "positions"),
        "pooling_layers": (abilities.layers, "layers that can be mixed"),
        "reinit_layers": (abilities.own_layers, "layers with weights of their own"),
    }
    faults = []
    for name, (limit, what) in limits.items():
        key, highest = _highest(study, name)
        if limit is not None and highest > limit:
            origin = "" if name in study.training or key.startswith("search") else ", the default"
            rule = f"be at most {limit}, the {what} that the backbone {study.backbone} has"
            faults.append(Fault(key, rule, f"{highest}{origin}", f"set it to {limit} or less"))
    requirements = {
        "pair": (abilities.marks_pairs, "has no token types to tell two texts apart"),
        "bi_encoder": (
            abilities.marks_pairs and abilities.starts_special,
            "has no token types to tell two texts apart, or no token in front of them",
        ),
        "cls": (abilities.starts_special, "puts no token in front that could represent the row"),
    }
    for key, pooling in possible_values(study, "pooling"):
        is_met, why = requirements.get(pooling, (True, ""))
        if pooling == "pooler":
            faults += _pooler_faults(study.backbone, key)
        elif pooling == "cls" and abilities.decoder:
            rule = f"not be cls with the decoder {study.backbone}, whose first token sees no other"
            faults.append(Fault(key, rule, "cls", "use last"))
        elif not is_met:
            rule = f"not be {pooling}, since the tokenizer of {study.backbone} {why}"
            faults.append(Fault(key, rule, str(pooling), "use mean"))
    faults += _head_faults(study, abilities)
    faults += _text_faults(study, abilities)
    for key, targets in possible_values(study, "lora_targets"):
        for name in targets.replace(",", " ").split() if isinstance(targets, str) else targets or ():
            if abilities.linear_names and name not in abilities.linear_names:
                faults.append(Fault(key, *target_fault(name, abilities.linear_names)[1:]))
    for key, batching in possible_values(study, "batching"):
        if batching == "packed" and not abilities.packs:
            rule = f"be padded for the backbone {study.backbone}, whose attention cannot keep packed rows apart"
            faults.append(Fault(key, rule, "packed", "leave it out, or name another backbone"))
    if not begun:  # a study that has, by an earlier version, can only go on with the search space that it has
        faults += _unsupported(study, abilities)
    if faults:
        raise ConfigError(*faults)


def _pooler_faults(backbone: str, key: str) -> Iterator[Fault]:
    from tutti.modeling.model import load_encoder

    try:
        load_encoder(backbone, pooler=True)
    except BackboneError as error:
        (fault,) = error.faults
        yield Fault(key, f"not be pooler with the backbone {backbone}", fault.got, fault.remedy)


def _text_faults(study: StudyConfig, abilities: Abilities) -> Iterator[Fault]:
    """The faults of tasks of texts: an encoder, prompts and targets that are too long together, wrong settings."""
    from tutti.training.generate import generation_config

    tasks = {name: task for name, task in study.tasks.items() if KINDS[task.kind].generative}
    for name, task in tasks.items():
        if not abilities.decoder:
            rule, remedy = "be a decoder, which writes texts", "name one, such as a Qwen or Llama"
            yield Fault("backbone", f"{rule}, for the task {name}", f"{study.backbone}, an encoder", remedy)
        try:
            generation_config(task.generation, where=f"tasks.{name}.generation")
        except ConfigError as error:
            yield from error.faults
    (source, longest), (target, most) = (_highest(study, name) for name in ("max_length", "target_max_len"))
    written = max((task.generation.get("max_new_tokens") or 0 for task in tasks.values()), default=0)
    if isinstance(written, int) and written > most:
        target, most = "generation.max_new_tokens", written
    if tasks and abilities.positions is not None and longest + most > abilities.positions:
        rule = f"be at most {abilities.positions} together, the positions that the backbone {study.backbone} has"
        yield Fault(f"{source} and {target}", rule, f"{longest} and {most}", "lower one of them")


def _head_faults(study: StudyConfig, abilities: Abilities) -> Iterator[Fault]:
    """The faults of `head: verbalizer`: an encoder, no words, or words or letters that are not one token each."""
    from tutti.data.encode import load_tokenizer
    from tutti.modeling.verbalizer import letter_tokens, word_tokens

    on = [key for key, head in possible_values(study, "head") if head == "verbalizer"]
    if on and not abilities.decoder:
        rule = f"be linear for the backbone {study.backbone}, an encoder, which guesses no next token"
        yield Fault(on[0], rule, "verbalizer", "leave it out, or name a decoder")
    elif on:
        words, tokenizer = study.training.get("words") or {}, load_tokenizer(study.backbone)
        choosing = [name for name, task in study.tasks.items() if KINDS[task.kind].exchangeable]
        if not words and not choosing:
            rule, remedy = "be there with `head: verbalizer`: one for each class", 'name them, as {0: " no", 1: " yes"}'
            yield Fault("training.words", rule, "none", remedy)
        try:
            word_tokens(words, tokenizer)
            if choosing and not words:
                letter_tokens(letters(2), tokenizer)
        except TrialError as error:
            yield from (replace(fault, what="training.words") for fault in error.faults)


def _unsupported(study: StudyConfig, abilities: Abilities) -> Iterator[Fault]:
    """The faults of training options that a trial switches on, but which the backbone lacks something for."""
    cannot_checkpoint = f"be false for the backbone {study.backbone}, which cannot compute its activations anew"
    float32_alone = f"be false for the backbone {study.backbone}, which can be computed in float32 alone"
    no_linear = f"for the backbone {study.backbone}, whose layers hold no linear layers, the only ones that it changes"
    no_table = f"for the backbone {study.backbone}, which has no table of words"
    for name, is_met, rule in (
        ("activation_checkpointing", abilities.checkpoints_activations, cannot_checkpoint),
        ("gradient_checkpointing", abilities.checkpoints_activations, cannot_checkpoint),
        ("mixout", abilities.linear_layers, f"be 0 {no_linear}"),
        ("adapter", abilities.linear_layers or abilities.linear_names, f"be null {no_linear}"),
        ("bf16", abilities.half_precision, float32_alone),
        ("fp16", abilities.half_precision, float32_alone),
        ("adversarial", abilities.embeds_words, f"be awp or null {no_table}"),
        ("neftune_noise_alpha", abilities.embeds_words, f"be null {no_table}"),
    ):
        # A frozen encoder is computed too, but none of its weights is trained.
        on = {} if is_met else _switched_on(study, name, frozen_too=rule == float32_alone or no_table in rule)
        for key, value in on.items():
            if value == "awp":  # changes any weights
                continue
            yield Fault(key, rule, written(value), "take it out, or name another backbone")


def _highest(study: StudyConfig, name: str) -> tuple[str, int]:
    """The key that sets the highest value of any trial, and that value."""
    default = TrainingOptions.model_fields[name].default
    values = [(key, int(default if value is None else value)) for key, value in possible_values(study, name)]
    return max(values, key=itemgetter(1))


def _switched_on(study: StudyConfig, name: str, *, frozen_too: bool) -> dict[str, Any]:
    """The keys that switch a training option on in any trial, each with such a value.

    Args:
        frozen_too: whether stages in which the encoder is always frozen count.
    """
    on: dict[str, Any] = {}
    for stage in stages_of(study):
        if frozen_too or not all(frozen for _, frozen in possible_values(study, "freeze_encoder", stage)):
            on |= {key: value for key, value in possible_values(study, name, stage) if value}
    return on
