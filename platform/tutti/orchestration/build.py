"""Builds trainings from a study's config: single runs and trials of a study go through the same function."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from tutti.bank.bank import Bank
from tutti.config.conditions import fixed_values, written
from tutti.config.folder import StudyFolder
from tutti.config.space import Categorical
from tutti.config.stages import STAGES, overlay
from tutti.config.study import StudyConfig
from tutti.config.training import LIMIT_KEYS, TrainingOptions
from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared, load_prepared
from tutti.errors import ConfigError, Fault, StorageError, StudyError
from tutti.files import check_no_link, sha256_of, storage_faults, write_whole
from tutti.orchestration.folds import fine_tune_folds
from tutti.orchestration.memory import with_smaller_batches
from tutti.orchestration.trial_listener import TrialListener
from tutti.records import CheckpointRecord, Scalar, TextLimit
from tutti.tasks.build import sample_ids_of, task_specs

_TOKENIZER = ("tokenizer*.json", "vocab.*", "merges.txt", "*.model")  # patterns of its files
_PROBE = "a b c d"  # a text that a backbone is tried on


def prepare_rows(study: StudyConfig, folder: StudyFolder) -> Prepared:
    """Prepares the study's data in its folder, or loads it after checking that files and settings are the same.

    Raises:
        ConfigError: if a pooling is for pairs and no task has pairs.
        As ``tutti.data.prepare.prepare`` does.
    """
    split = study.split
    prepared = prepare(
        task_specs(study.tasks, sample_ids_of(study), split, study.weights),
        validation=split.validation,
        folds=split.folds,
        seed=split.seed,
        folder=folder.data,
        fold_column=split.fold_column,
        group=split.group,
    )
    if not any(task.pair for task in prepared.tasks):
        rule, remedy = "be for single texts where no task has pairs, of which it is the mean", "use mean"
        poolings = possible_values(study, "pooling")
        if faults := [Fault(key, rule, each, remedy) for key, each in poolings if each in ("pair", "bi_encoder")]:
            raise ConfigError(*faults)
    return prepared


def encode_study(
    study: StudyConfig, folder: StudyFolder, prepared: Prepared, abilities: Abilities
) -> tuple[list[TextLimit], dict[str, float]]:
    """Encodes every part of every task once, before any trial starts, for every limit of lengths known in advance.

    Of a range that is the highest one, since its rows have the tokens of all shorter ones.

    Returns:
        The limits of trials with the greatest length, and by task the share of rows that reach it: nearly all of them
        are longer. Without shares where the search space has a range of lengths.

    Raises:
        BackboneError: if the backbone has no tokenizer that loads, or no embedding of something that it gives.
        StorageError: if a part is damaged or the cache cannot be written.
    """
    from tutti.data.encode import load_parts
    from tutti.data.known_tokens import check_known

    limits = sorted(_possible_limits(study), key=lambda limit: (limit.max_length, limit.long_texts, limit.stride))
    for limit in limits:
        tasks = load_parts(prepared, tokenizer=study.backbone, limit=limit, cache=folder.encoded)
    apart = all(pooling == "bi_encoder" for _, pooling in possible_values(study, "pooling"))
    pairs = {task.name for task in prepared.tasks if task.pair}
    for task, parts in tasks.items():
        types = None if apart and task in pairs else abilities.token_types
        for name, part in parts.items():
            where = f"{name} of the task {task}"
            check_known(part, where=where, backbone=study.backbone, tokens=abilities.tokens, token_types=types)
    longest = [limit for limit in limits if limit.max_length == limits[-1].max_length]
    if _varies_as_range(study, "max_length"):  # trials encode the lengths that they draw
        return longest, {}
    reached = {
        task: np.concatenate([part.lengths for part in parts.values()]) >= longest[-1].max_length
        for task, parts in tasks.items()
    }
    return longest, {task: float(rows.mean()) for task, rows in reached.items()}


def _possible_limits(study: StudyConfig) -> set[TextLimit]:
    """The limits that trials may have; of a range of lengths the highest one, which has the tokens of all others."""
    values: dict[str, list[Any]] = {}
    for key in LIMIT_KEYS:
        varied, values[key] = study.search_space.root.get(key), [study.training.get(key)]
        if varied is not None:
            choices = varied.choices if isinstance(varied, Categorical) else (varied.high,)
            values[key] = [*choices, *(values[key] if varied.when else [])]
    combinations = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    return {
        limit_of({key: value for key, value in combination.items() if value is not None})
        for combination in combinations
    }


def _varies_as_range(study: StudyConfig, key: str) -> bool:
    varied = study.search_space.root.get(key)
    return varied is not None and not isinstance(varied, Categorical)


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
        tokens: number of token ids that it has embeddings of; none if it takes any.
        token_types: number of token types that it has embeddings of; none if it takes any.
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


def abilities_of(backbone: str, *, begun: bool = False) -> Abilities:
    """Loads the backbone, which reports an unusable one early and downloads one from the hub only once.

    Args:
        begun: whether a study has begun with it, by an earlier version perhaps, and can only go on: it is not tried.

    Raises:
        BackboneError: if the backbone or its tokenizer does not load, or the backbone does not compute texts.
    """
    from tutti.data.encode import load_tokenizer, marks_second_text, starts_special
    from tutti.modeling.layers import has_linear_layers, own_layers, token_types, tokens
    from tutti.modeling.model import load_encoder, positions
    from tutti.modeling.probe import probed_layers
    from tutti.training.precision import runs_in_half_precision

    encoder, tokenizer = load_encoder(backbone), load_tokenizer(backbone)
    known = tokens(encoder)
    # A tokenizer without special tokens may know none of the letters, and the encoder not all that it gives for them.
    ids = [number for number in tokenizer(_PROBE)["input_ids"] if known is None or number < known] or [0]
    return Abilities(
        positions=positions(encoder),
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
    )


def check_backbone(study: StudyConfig, abilities: Abilities, *, begun: bool) -> None:
    """Rejects settings that the backbone cannot handle, before a trial fails when it is built or at a long row.

    Raises:
        ConfigError: with a fault for each training key, or key of the search space if that varies it.
    """
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
        if not is_met:
            rule = f"not be {pooling}, since the tokenizer of {study.backbone} {why}"
            faults.append(Fault(key, rule, str(pooling), "use mean"))
    if not begun:  # a study that has, by an earlier version, can only go on with the search space that it has
        faults += _unsupported(study, abilities)
    if faults:
        raise ConfigError(*faults)


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
        ("adapter", abilities.linear_layers, f"be null {no_linear}"),
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


def keep_backbone(study: StudyConfig, folder: StudyFolder) -> None:
    """Writes the hashes of a backbone's configuration, weights and tokenizer, or compares them with an earlier run's.

    A backbone from the hub is not compared.

    Raises:
        StudyError: if the study began with others: its trials would not be comparable, and those cut off not go on.
        StorageError: if the hashes cannot be read or written.
    """
    from tutti.modeling.adapters import backbone_files

    place, files = folder.backbone_file, backbone_files(study.backbone)
    tokenizer = _tokenizer_files(study.backbone) if files else {}
    with storage_faults(place):
        if not place.exists():
            write_whole(place, json.dumps(files | tokenizer, indent=1))
        try:
            kept = dict(json.loads(place.read_bytes()))
        except (ValueError, TypeError) as error:
            rule, remedy = "hold the hashes of the backbone's files", "restore it, or remove it to go on unchecked"
            raise StorageError(Fault(str(place), rule, str(error), remedy)) from error
    if kept.keys() & tokenizer.keys():  # older studies have kept none of them
        files |= tokenizer
    differing = sorted(name for name in kept.keys() | files.keys() if kept.get(name) != files.get(name))
    if differing and kept and files:
        name = differing[0]
        got = f"no {name}" if name not in files else f"{'another' if name in kept else 'a new'} {name}"
        rule = f"hold the configuration, tokenizer and weights that it held when the study {study.study!r} began"
        remedy = "restore them, or give `study:` another name"
        raise StudyError(Fault(f"the backbone {study.backbone}", rule, got, remedy))


def _tokenizer_files(backbone: str) -> dict[str, str]:
    folder = Path(backbone).expanduser()
    return {file.name: sha256_of(file) for pattern in _TOKENIZER for file in folder.glob(pattern) if file.is_file()}


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


def stages_of(study: StudyConfig) -> list[str]:
    """What precedes the keys of each stage, ``stages.N.``; a single empty text without stages."""
    return [f"{STAGES}.{index}." for index in range(len(study.training.get(STAGES) or ()))] or [""]


def possible_values(study: StudyConfig, name: str, stage: str = "") -> Iterator[tuple[str, Any]]:
    """The possible values of a training option in a stage, ``stages.N.``, each with the key that sets it.

    Of a range it is the highest one; None is the default. The stage's own keys override those of all stages.
    """
    fixed, space = fixed_values(study.training), study.search_space.root
    for key in dict.fromkeys((f"{stage}{name}", name)):
        if distribution := space.get(key):
            values = distribution.choices if isinstance(distribution, Categorical) else (distribution.high,)
            yield from ((f"search_space.{key}", value) for value in values)
            if not distribution.when:
                return
        if key in fixed:
            yield f"training.{key}", fixed[key]
            return
    yield f"training.{name}", None


def limit_of(training: Mapping[str, Any]) -> TextLimit:
    """How long inputs are, and what becomes of longer ones, according to training keys."""
    return TrainingOptions(**{key: training[key] for key in LIMIT_KEYS if key in training}).limit


def fine_tune_once(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    key: str,
    number: int,
    parameters: Mapping[str, Scalar],
    listener: TrialListener,
    main: bool,
    smaller_batches: bool,
) -> CheckpointRecord:
    """Fine-tunes on the study's prepared data and puts the best checkpoint's predictions into the bank.

    Needs no Ray. In an initialized ``torch.distributed`` group every rank calls it. With folds it fine-tunes once per
    fold, and puts out-of-fold predictions of all training rows into the bank.

    Args:
        main: whether this process is rank 0.
        smaller_batches: train with less memory per step, see ``with_smaller_batches``.

    Raises:
        TrialError: if a loss or a prediction is not finite, on every rank.
        TrialMemoryError: if the batches cannot be made smaller.
        StorageError: if a file cannot be written or read.
        BackboneError: if the backbone does not load.
    """
    from tutti.data.encode import load_parts
    from tutti.training import fine_tune

    trial = folder.trial(key).path
    for path in (trial, *trial.glob("*"), *trial.glob("fold-*/*")):
        check_no_link(path)
    training = overlay(study.training, parameters)
    prepared = load_prepared(folder.data)
    parts = load_parts(prepared, tokenizer=study.backbone, limit=limit_of(training), cache=folder.encoded)
    if smaller_batches:
        apart = training.get("pooling") == "bi_encoder"
        lengths = [parts[task.name]["train"].batch_lengths(apart=apart and task.pair) for task in prepared.tasks]
        training = with_smaller_batches(training, lengths=lengths)
    settings: dict[str, Any] = {
        "backbone": study.backbone,
        "tasks": prepared.tasks,
        "parts": parts,
        "training": training,
        "folder": trial,
        "key": key,
        "number": number,
        "on_notice": listener.on_notice,
        "on_step": listener.on_step,
    }
    if study.split.folds:
        folds = {task: prepared.folds(task) for task in parts}
        result = fine_tune_folds(**settings, folds=folds, on_epoch=listener.on_fold_epoch, on_fold=listener.on_fold)
    else:
        result = fine_tune(**settings, on_epoch=listener.on_epoch)
    if main:
        Bank(folder.bank).put(result.checkpoint, result.predictions)
    return result.checkpoint
