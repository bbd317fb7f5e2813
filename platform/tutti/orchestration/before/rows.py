"""A study's rows: prepared once, and encoded once for each limit of lengths that its trials may have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tutti.config.folder import StudyFolder
from tutti.config.possible import possible_limits, possible_values, varies_as_range
from tutti.config.study import StudyConfig
from tutti.data.prepare import prepare
from tutti.data.prepared import REPORTED, Prepared
from tutti.data.prompts import reach
from tutti.errors import ConfigError, Fault, TrialError
from tutti.orchestration.before.abilities import Abilities
from tutti.records import TextLimit
from tutti.tasks.build import sample_ids_of, task_specs

if TYPE_CHECKING:
    from tutti.data.encode import EncodedPart


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
) -> tuple[list[TextLimit], dict[tuple[str, str], float]]:
    """Encodes every part of every task once, before any trial starts, for every limit of lengths known in advance.

    Of a range that is the highest one, since its rows have the tokens of all shorter ones.

    Returns:
        The limits of trials with the greatest length, and by task and key, ``max_length`` or ``target_max_len``, the
        share of rows that reach it: nearly all of them are longer. Without shares where the search space has a range of
        lengths.

    Raises:
        BackboneError: if the backbone has no tokenizer that loads, or no embedding of something that it gives.
        StorageError: if a part is damaged or the cache cannot be written.
    """
    from tutti.data.encode import load_parts
    from tutti.data.known_tokens import check_known

    _check_words(study, prepared)
    limits = sorted(possible_limits(study), key=lambda limit: (limit.max_length, limit.truncation, limit.stride))
    for limit in limits:
        tasks = load_parts(prepared, tokenizer=study.backbone, limit=limit, cache=folder.encoded)
    apart = all(pooling == "bi_encoder" for _, pooling in possible_values(study, "pooling"))
    pairs = {task.name for task in prepared.tasks if task.pair}
    for task, parts in tasks.items():
        types = None if apart and task in pairs else abilities.token_types
        for name, part in parts.items():
            where = f"{name} of the task {task}"
            check_known(part, where=where, backbone=study.backbone, tokens=abilities.tokens, token_types=types)
            _check_packs(study, part, where=where)
            _check_questions(part, name, where=where, abilities=abilities)
    longest = [limit for limit in limits if limit.max_length == limits[-1].max_length]
    if varies_as_range(study, "max_length"):  # trials encode the lengths that they draw
        return longest, {}
    written = {task.name for task in prepared.tasks if task.kind.generative}
    reached: dict[tuple[str, str], list[np.ndarray]] = {}
    for task, parts in tasks.items():
        for name, part in parts.items():
            if task in written and name.startswith(REPORTED):  # questions, which have a limit of their own
                continue
            widths = {"max_length": part.widths >= longest[-1].max_length}
            for key, rows in (reach(part, longest[-1]) if task in written else widths).items():
                reached.setdefault((task, key), []).append(rows)
    return longest, {where: float(np.concatenate(rows).mean()) for where, rows in reached.items()}


def _check_words(study: StudyConfig, prepared: Prepared) -> None:
    """Refuses words of a verbalizer that name no task's classes, which are known once its rows are read."""
    from tutti.modeling.verbalizer import verbalized

    words = study.training.get("words") or {}
    if words and any(head == "verbalizer" for _, head in possible_values(study, "head")):
        try:
            verbalized(prepared.tasks, words)
        except TrialError as error:
            raise ConfigError(*(replace(fault, what="training.words") for fault in error.faults)) from error


def _check_questions(part: EncodedPart, name: str, *, where: str, abilities: Abilities) -> None:
    """Refuses questions beside a task of texts that the backbone has no positions for, as a tokenizer may not know."""
    if name.startswith(REPORTED) and part.targets is not None and abilities.positions is not None:
        longest = int(part.lengths.max(initial=0))
        if longest > abilities.positions:
            rule = f"have at most the {abilities.positions} tokens that the backbone has positions for"
            raise ConfigError(Fault(f"each question of {where}", rule, f"{longest}", "leave the longest ones out"))


def _check_packs(study: StudyConfig, part: EncodedPart, *, where: str) -> None:
    """Refuses packed rows with tags that are read in windows, which cannot be laid end to end as one row."""
    packed = [key for key, batching in possible_values(study, "batching") if batching == "packed"]
    if packed and part.units is not None and part.windows is not None:
        longer = int((part.windows > 1).sum())
        got = f"packed, and {longer} of {len(part.windows)} rows that are longer in {where}"
        rule = "be padded where rows with tags are longer than max_length"
        raise ConfigError(Fault(packed[0], rule, got, "raise max_length, or leave it out"))
