"""Backbones that a run keeps every so many steps, to be tried on a study while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tutti.files import clear_stray, resolved, strays, whole_folder


def kept_folder(out: Path) -> Path:
    """Where the run that writes ``out`` keeps backbones: beside it, as ``out`` itself is made whole at the end."""
    return resolved(out).with_name(f"{resolved(out).name}.kept")


def kept_backbones(out: Path) -> dict[int, Path]:
    """The backbones that a run has kept so far, by their number of steps, fewest first."""
    found = {each.name.removeprefix("step-"): each for each in kept_folder(out).glob("step-*")}
    return {int(step): found[step] for step in sorted(filter(str.isdecimal, found), key=int)}


def keep(out: Path, step: int, save: Callable[[Path], None]) -> None:
    """Keeps the backbone after ``step`` steps, which ``save`` writes into a folder, whole; one that is there stays.

    Raises:
        StorageError: if it cannot be written.
    """
    from tutti.modeling.checkpoint import tensor_faults
    from tutti.modeling.model import no_progress_bars

    place = kept_folder(out)
    folder = place / f"step-{step}"
    if folder.is_dir():  # a resumed run takes steps again, with the same result
        return
    for stray in strays(place) if place.is_dir() else ():
        clear_stray(stray)
    with tensor_faults(folder), whole_folder(folder) as temporary, no_progress_bars():
        save(temporary)
