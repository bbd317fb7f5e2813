"""Who could vote: the checkpoints of one bank or of several studies' banks, all of them or some, read as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Protocol

from tutti.bank.bank import Bank
from tutti.records import CheckpointRecord, Predictions


class Checkpoints(Protocol):
    """What an ensemble reads of a bank. Every method raises StorageError where it cannot be read."""

    def records(self) -> list[CheckpointRecord]:
        """The checkpoints, in the order in which equals stand."""
        ...

    def parts(self, key: str) -> dict[str, list[str]]:
        """The parts that a checkpoint has predictions for, by task."""
        ...

    def predictions(self, key: str, task: str, part: str) -> Predictions:
        """What a checkpoint says about one part of one task."""
        ...


class Electorate:
    """Some checkpoints of one study, under their own keys, or of several, as ``STUDY/KEY``.

    Args:
        banks: by the study's name; of equals those of the first study stand first.
        only: keys of those who may vote, by the study's name; a study that is not named has all of them.
    """

    def __init__(self, banks: Mapping[str, Bank], *, only: Mapping[str, Collection[str]] | None = None) -> None:
        self._banks, self._only = dict(banks), dict(only or {})

    @property
    def studies(self) -> tuple[str, ...]:
        """Names of the studies."""
        return tuple(self._banks)

    def records(self) -> list[CheckpointRecord]:
        return [
            dataclasses.replace(record, key=self._key(study, record.key))
            for study, bank in self._banks.items()
            for record in bank.records()
            if record.key in self._only.get(study, (record.key,))
        ]

    def parts(self, key: str) -> dict[str, list[str]]:
        study, own = self.place(key)
        return self._banks[study].parts(own)

    def predictions(self, key: str, task: str, part: str) -> Predictions:
        study, own = self.place(key)
        return self._banks[study].predictions(own, task, part)

    def place(self, key: str) -> tuple[str, str]:
        """The study that a checkpoint is of, and its key there."""
        study, _, own = key.rpartition("/")
        return study or next(iter(self._banks)), own

    def _key(self, study: str, key: str) -> str:
        return key if len(self._banks) == 1 else f"{study}/{key}"
