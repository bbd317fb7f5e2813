"""Validates an entry's ``record.json``, which may have been edited by hand."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from tutti.errors import misfit
from tutti.files import is_plain
from tutti.records import CheckpointRecord


@dataclass(frozen=True)
class _Checkpoint(CheckpointRecord):
    __pydantic_config__ = ConfigDict(extra="forbid")


class _File(BaseModel):
    file: str
    sha256: str

    @field_validator("file")
    @classmethod
    def _stays_inside(cls, file: str) -> str:
        if not all(map(is_plain, file.split("/"))):
            raise ValueError("a path that leads out of the bank")
        return file


class _Metadata(BaseModel):
    checkpoint: _Checkpoint
    predictions: dict[str, dict[str, _File]]


def record_of(metadata: object) -> CheckpointRecord:
    """The checkpoint record in an entry's metadata.

    Args:
        metadata: ``{"checkpoint": fields of the record, "predictions": {TASK: {PART: {"file": ..., "sha256": ...}}}}``.

    Raises:
        ValueError: if the metadata have another form; the message completes "got ...".
    """
    try:
        checkpoint = _Metadata.model_validate(metadata).checkpoint
    except ValidationError as error:
        raise ValueError(misfit(error)) from error
    return CheckpointRecord(**vars(checkpoint))
