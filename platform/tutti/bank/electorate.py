"""The candidates of an ensemble: checkpoints of one or several studies' banks, behind one interface."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from tutti.bank.bank import Bank
from tutti.records import CheckpointRecord
from tutti.tasks.predictions import Predictions


class Checkpoints(Protocol):
    """What an ensemble reads from a bank. Every method raises StorageError if the bank cannot be read."""

    def records(self) -> list[CheckpointRecord]:
        """The checkpoints; ties in a ranking go to the earlier one."""
        ...

    def parts(self, key: str) -> dict[str, list[str]]:
        """The parts for which a checkpoint has predictions, by task."""
        ...

    def predictions(self, key: str, task: str, part: str) -> Predictions:
        """A checkpoint's predictions for one part of one task."""
        ...


class WithParts:
    """Checkpoints with predictions that no bank has, such as those of a later test set, beside those of their own.

    Args:
        added: by key, task and part; they go before those of the bank.
    """

    def __init__(self, checkpoints: Checkpoints, added: Mapping[tuple[str, str, str], Predictions]) -> None:
        self._checkpoints, self._added = checkpoints, added

    def records(self) -> list[CheckpointRecord]:
        return self._checkpoints.records()

    def parts(self, key: str) -> dict[str, list[str]]:
        parts = {task: [*known] for task, known in self._checkpoints.parts(key).items()}
        for owner, task, part in self._added:
            if owner == key and part not in parts.setdefault(task, []):
                parts[task].append(part)
        return parts

    def predictions(self, key: str, task: str, part: str) -> Predictions:
        return self._added.get((key, task, part)) or self._checkpoints.predictions(key, task, part)


class Electorate:
    """Checkpoints of one study, under their own keys, or of several studies, as ``STUDY/KEY``.

    Args:
        banks: banks by study name; ties in a ranking go to the first study.
        only: keys of the checkpoints that may vote, by study name; all of a study that is not named.
        guests: whether predictions vote that are no trial's.
    """

    def __init__(
        self, banks: Mapping[str, Bank], *, only: Mapping[str, Collection[str]] | None = None, guests: bool = True
    ) -> None:
        self._banks, self._only, self._guests = dict(banks), dict(only or {}), guests

    def records(self) -> list[CheckpointRecord]:
        return [
            dataclasses.replace(record, key=record.key if len(self._banks) == 1 else f"{study}/{record.key}")
            for study, bank in self._banks.items()
            for record in bank.records()
            if record.key in self._only.get(study, (record.key,)) and (self._guests or record.source is None)
        ]

    def parts(self, key: str) -> dict[str, list[str]]:
        study, own_key = located(key, self._banks)
        return self._banks[study].parts(own_key)

    def predictions(self, key: str, task: str, part: str) -> Predictions:
        study, own_key = located(key, self._banks)
        return self._banks[study].predictions(own_key, task, part)


def located(key: str, studies: Iterable[str]) -> tuple[str, str]:
    """The study of an electorate's checkpoint, and its key in that study; one of several studies has it as prefix."""
    study, _, own_key = key.rpartition("/")
    return study or next(iter(studies)), own_key
