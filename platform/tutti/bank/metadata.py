"""The file that makes an entry of the bank complete, read with care: it may have been changed by hand."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from tutti.records import CheckpointRecord


@dataclass(frozen=True)
class _Checkpoint(CheckpointRecord):
    __pydantic_config__ = ConfigDict(extra="forbid")


class _File(BaseModel):
    file: str
    sha256: str


class _Metadata(BaseModel):
    checkpoint: _Checkpoint
    predictions: dict[str, dict[str, _File]]


def record_of(metadata: object) -> CheckpointRecord:
    """The checkpoint that an entry's metadata names.

    Args:
        metadata: ``{"checkpoint": fields of the record, "predictions": {TASK: {PART: {"file": ..., "sha256": ...}}}}``.

    Raises:
        ValueError: where it is of another form, which the error says as the end of "got ...".
    """
    try:
        found = _Metadata.model_validate(metadata).checkpoint
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise ValueError(f"{where} ({first['msg'][0].lower()}{first['msg'][1:]})") from error
    return CheckpointRecord(**vars(found))
