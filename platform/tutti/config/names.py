"""Looks up what is shipped with Tutti: search spaces and recipes by name, and manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Kind = Literal["search_spaces", "ensembles", "kuberay"]


def shipped_folder(kind: Kind) -> Path:
    """The folder of the shipped files, in the package; in a source checkout a link to the repository's folder."""
    return Path(__file__).parents[1] / kind


def shipped_names(kind: Kind) -> tuple[str, ...]:
    """The names that a study file or ``--recipe`` may use, in alphabetical order."""
    return tuple(sorted(file.stem for file in shipped_folder(kind).glob("*.yaml")))


def is_path(name: str) -> bool:
    """Whether a value is the path of a user's own file rather than a shipped name."""
    return "/" in name or "\\" in name or name.startswith("~") or name.endswith((".yaml", ".yml"))
