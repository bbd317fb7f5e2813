"""Options that name what is written."""

from __future__ import annotations

from pathlib import Path

import typer

from tutti.config.address import address_fault
from tutti.errors import ConfigError


def local(option: typer.CallbackParam, path: Path | None) -> Path | None:
    """The path given for an option, if any.

    Raises:
        ConfigError: if it is an address, such as ``s3://bucket/out``.
    """
    if path and (fault := address_fault(path, what=option.opts[0])):
        raise ConfigError(fault)
    return path
