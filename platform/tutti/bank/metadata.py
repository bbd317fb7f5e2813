"""The file that makes an entry of the bank complete, read with care: it may have been changed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from tutti.records import CheckpointRecord

_NUMBER = (int, float)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "key": (str,),
    "number": (int,),
    "epoch": (int,),
    "score": _NUMBER,
    "task_scores": (dict,),
    "path": (str, type(None)),
    "parameters": (int, type(None)),
}


def record_of(metadata: object) -> CheckpointRecord:
    """The checkpoint that an entry's metadata names.

    Args:
        metadata: ``{"checkpoint": fields of the record, "predictions": {TASK: {PART: {"file": ..., "sha256": ...}}}}``.

    Raises:
        ValueError: where it is of another form, which the error says as the end of "got ...".
    """
    whole = _dict(metadata, "content")
    given = _dict(whole.get("checkpoint"), "checkpoint")
    for task, parts in _dict(whole.get("predictions"), "predictions").items():
        for part, file in _dict(parts, f"predictions.{task}").items():
            where = f"predictions.{task}.{part}"
            for name in ("file", "sha256"):
                _check(_dict(file, where).get(name), f"{where}.{name}", (str,))
    if lacking := [
        each.name for each in fields(CheckpointRecord) if each.default is MISSING and each.name not in given
    ]:
        raise ValueError(f"no checkpoint.{lacking[0]}")
    if strange := sorted(given.keys() - _KINDS.keys()):
        raise ValueError(f"the unknown checkpoint.{strange[0]}")
    for name, value in given.items():
        _check(value, f"checkpoint.{name}", _KINDS[name])
    for task, score in given["task_scores"].items():
        _check(score, f"checkpoint.task_scores.{task}", _NUMBER)
    return CheckpointRecord(**given)


def _dict(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _odd(value, where)
    return value


def _check(value: object, where: str, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds):
        raise _odd(value, where)


def _odd(value: object, where: str) -> ValueError:
    return ValueError(f"no {where}" if value is None else f"{where}: {value!r:.80}")
