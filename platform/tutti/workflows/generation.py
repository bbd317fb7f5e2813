"""Texts under other settings of generation, which vote as guests: they are searched without training again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from tutti.errors import Fault, StudyError
from tutti.workflows.base import StudyBase
from tutti.workflows.guests import put_guest

if TYPE_CHECKING:
    from tutti.records import CheckpointRecord


def generate(
    study: StudyBase, settings: Mapping[str, Sequence[Any]], *, trials: Sequence[str] = (), task: str | None = None
) -> list[CheckpointRecord]:
    """Lets trials that have ended write the texts of a task anew, under each combination of some settings.

    Texts for the validation, test and unlabelled rows become a guest each, which ranks by its own score and votes. They
    are written in this process, on a GPU where there is one. What is there already is written again.

    Args:
        settings: fields of ``transformers.GenerationConfig`` with the values to try, over those of the study file.
        trials: keys of trials with weights; by default the best one.
        task: which task, where the study has several.

    Returns:
        The guests' records in the bank, the best score first.

    Raises:
        ConfigError: if a setting is unknown, or some do not fit each other.
        StudyError: if the task has no texts to be written, or a trial no weights.

    Example:
        >>> study.generate({"num_beams": [1, 4], "max_new_tokens": [64]})
    """
    from tutti.orchestration.after.weights import weights_of
    from tutti.training.generate import generation_config, texts_under
    from tutti.workflows.predict import task_named

    study = study.stored
    own, config = task_named(study, task), study.config
    if own.generation is None:
        rule, got = "have texts to be written", own.kind.describe(own.names)
        raise StudyError(Fault(f"the task {own.name}", rule, got, "name another task with --task"))
    if config.split.folds:
        rule, remedy = "have no folds, since a text is one model's", "search settings in a study without folds"
        raise StudyError(Fault(f"the study {config.study}", rule, f"{config.split.folds} folds", remedy))
    combinations = [dict(zip(settings, values, strict=True)) for values in product(*settings.values())]
    tried = [{**own.generation.settings, **each} for each in combinations]
    for each in tried:
        generation_config(each)
    ranked = sorted(study.bank.records(), key=lambda record: record.score, reverse=True)
    keys = list(trials) or [record.key for record in ranked if record.source is None][:1]
    found = []
    for key, (folder,) in weights_of(study.folder, keys, folds=None, tasks=[own]).items():
        written = texts_under(
            folder, own, tried, prepared=study.prepared, cache=study.folder.encoded, training=config.training
        )
        for chosen, (outputs, scores) in zip(combinations, written, strict=True):
            said = ", ".join(f"{name} {value}" for name, value in chosen.items())
            guest = f"{key}-{re.sub(r'[^A-Za-z0-9._]+', '-', said)}".rstrip("-")[:80]
            source = f"{key} with {said}"
            parameters = {"source": source, **{name: str(value) for name, value in chosen.items()}}
            written_by: dict[str, Any] = {"writer": key, "settings": chosen, "log_probabilities": scores}
            found.append(put_guest(study, guest, own, outputs, source=source, parameters=parameters, **written_by))
            study.console.print(f"  {guest}: {found[-1].score:.4f}", markup=False)
    return sorted(found, key=lambda record: record.score, reverse=True)
