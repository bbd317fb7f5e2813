"""The one builder: a single training run and a trial of a study are made by the same function from the same config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.config.space import Categorical
from tutti.config.stages import overlay
from tutti.config.study import StudyConfig
from tutti.config.training import TrainingOptions
from tutti.data.prepare import Prepared, load_prepared
from tutti.errors import ConfigError, Fault
from tutti.orchestration.folds import FoldReport, fine_tune_folds
from tutti.orchestration.memory import with_smaller_batches
from tutti.records import CheckpointRecord, Scalar

if TYPE_CHECKING:
    from tutti.training import EpochReport


def encode_study(study: StudyConfig, folder: StudyFolder, prepared: Prepared) -> None:
    """Encodes every part of every task once, before any trial starts, for each ``max_length`` that is known.

    Raises:
        BackboneError: where the backbone has no tokenizer that loads.
    """
    from tutti.data.encode import load_parts

    match study.search_space.root.get("max_length"):
        case Categorical(choices=choices):
            lengths = sorted({int(choice) for choice in choices if choice is not None})
        case _:  # of a range, what no trial may draw is not encoded beforehand
            lengths = [max_length_of(study.training)]
    for length in lengths:
        load_parts(prepared, tokenizer=study.backbone, max_length=length, cache=folder.encoded)


@dataclass(frozen=True)
class Abilities:
    """What a backbone can do.

    Attributes:
        positions: the longest input that it takes; none for any.
        layers: how many it has; none where that is not known.
        own_layers: how many have weights of their own and lie in one list: 1 where all share them, as ALBERT's do.
        marks_pairs: whether its tokenizer tells the second text's tokens from the first's.
        starts_special: whether its tokenizer puts a token of its own in front, as ``[CLS]`` is.
    """

    positions: int | None
    layers: int | None
    own_layers: int
    marks_pairs: bool
    starts_special: bool


def check_backbone(study: StudyConfig, able: Abilities) -> None:
    """Refuses what is beyond the backbone: a trial would die at its first long row, or as it is built.

    Raises:
        ConfigError: for the training key, or for the search space where that varies it.
    """
    limits = {
        "max_length": (able.positions, "positions"),
        "pooling_layers": (able.layers, "layers"),
        "reinit_layers": (able.own_layers, "layers with weights of their own"),
    }
    faults = []
    for name, (most, what) in limits.items():
        key, highest = _highest(study, name)
        if most is not None and highest > most:
            given = "" if name in study.training or key.startswith("search") else ", the default"
            rule = f"be at most {most}, the {what} that the backbone {study.backbone} has"
            faults.append(Fault(key, rule, f"{highest}{given}", f"set it to {most} or less"))
    place, poolings = _choices(study, "pooling")
    lacks = {
        "pair": (able.marks_pairs, "has no token types to tell two texts apart"),
        "cls": (able.starts_special, "puts no token in front that could stand for the row"),
    }
    for pooling, (is_able, why) in lacks.items():
        if pooling in poolings and not is_able:
            rule = f"not be {pooling}, since the tokenizer of {study.backbone} {why}"
            faults.append(Fault(place, rule, pooling, "use mean"))
    if faults:
        raise ConfigError(*faults)


def _highest(study: StudyConfig, name: str) -> tuple[str, int]:
    """The key that gives the highest value which any trial may have, and that value."""
    given = int(study.training.get(name, TrainingOptions.model_fields[name].default))
    match distribution := study.search_space.root.get(name):
        case None:
            return f"training.{name}", given
        case Categorical(choices=choices):
            drawn = max(int(choice) for choice in choices if choice is not None)
        case _:
            drawn = int(distribution.high)
    # Where the condition of a key does not hold, a trial has what `training:` gives it.
    return (f"training.{name}", given) if distribution.when and given > drawn else (f"search_space.{name}", drawn)


def _choices(study: StudyConfig, name: str) -> tuple[str, Sequence[object]]:
    """The key that gives a trial's value of a training key with names for values, and all that it may give."""
    match study.search_space.root.get(name):
        case Categorical(choices=choices, when=when):
            return f"search_space.{name}", [*choices, *([study.training.get(name)] if when else [])]
        case _:
            return f"training.{name}", [study.training.get(name)]


def max_length_of(training: Mapping[str, object]) -> int:
    """The longest input, in tokens, that training keys ask for."""
    return int(training.get("max_length", TrainingOptions.model_fields["max_length"].default))  # type: ignore[call-overload]


def fine_tune_once(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    key: str,
    number: int,
    parameters: Mapping[str, Scalar],
    on_epoch: Callable[[EpochReport], None],
    on_fold_epoch: Callable[[int, EpochReport], None] = lambda fold, report: None,
    on_fold: Callable[[FoldReport], None] = lambda report: None,
    on_notice: Callable[[str], None] = lambda text: None,
    on_step: Callable[[], None] = lambda: None,
    main: bool = True,
    smaller_batches: bool = False,
) -> CheckpointRecord:
    """Fine-tunes on the study's prepared data and puts the best checkpoint's predictions into the bank.

    Needs no Ray. In an initialised ``torch.distributed`` group every rank calls it; ``main`` is true on rank 0 alone.
    With folds it fine-tunes once for each, and puts out-of-fold predictions of all training rows into the bank.

    Args:
        on_epoch: called after each evaluation in a study without folds.
        on_fold_epoch: called after each evaluation in a study with folds, with the fold's number from 0.
        on_fold: called once a fold is whole; see ``fine_tune_folds``.
        on_notice, on_step: see ``fine_tune``.
        smaller_batches: whether steps are to take less memory, see ``with_smaller_batches``.

    Raises:
        TrialError: where a loss or a prediction is not finite, on every rank.
        TrialMemoryError: where its batches cannot be made smaller.
        StorageError: where a file cannot be written or read.
        BackboneError: where the backbone does not load.
    """
    from tutti.data.encode import load_parts
    from tutti.training import fine_tune

    training = overlay(study.training, parameters)
    if smaller_batches:
        training = with_smaller_batches(training)
    max_length = max_length_of(training)
    prepared = load_prepared(folder.data)
    parts = load_parts(prepared, tokenizer=study.backbone, max_length=max_length, cache=folder.encoded)
    given: dict[str, Any] = {
        "backbone": study.backbone,
        "tasks": prepared.tasks,
        "parts": parts,
        "training": training,
        "folder": folder.trial(key),
        "key": key,
        "number": number,
        "on_notice": on_notice,
        "on_step": on_step,
    }
    if study.split.folds:
        folds = {task: prepared.folds(task) for task in parts}
        done = fine_tune_folds(**given, folds=folds, on_epoch=on_fold_epoch, on_fold=on_fold)
    else:
        done = fine_tune(**given, on_epoch=on_epoch)
    if main:
        Bank(folder.bank).put(done.checkpoint, done.predictions)
    return done.checkpoint
