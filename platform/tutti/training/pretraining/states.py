"""The states that an interrupted run goes on from: written whole, checked when read, the newest two kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tutti.files import clear_stray, sha256_of, storage_faults, strays, whole_folder
from tutti.modeling.checkpoint import tensor_faults

KEPT = 2
_TENSORS, _METADATA = "state.pt", "state.json"


class States:
    """States in a folder, one folder each.

    Args:
        on_notice: called with a sentence for each state that is damaged, and therefore passed over.
    """

    def __init__(self, folder: Path, *, on_notice: Callable[[str], None]) -> None:
        self._folder, self._on_notice = folder, on_notice

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Writes the state after ``step`` steps, and removes all but the newest two.

        Raises:
            StorageError: if it cannot be written; earlier ones stay.
        """
        folder = self._folder / f"step-{step}"
        with tensor_faults(folder), whole_folder(folder) as temporary:
            torch.save({**state, "step": step}, temporary / _TENSORS)
            (temporary / _METADATA).write_text(json.dumps({"sha256": sha256_of(temporary / _TENSORS)}))
        with storage_faults(self._folder):
            for old in self._newest_first()[KEPT:]:
                shutil.rmtree(old)

    def newest(self) -> dict[str, Any] | None:
        """The newest state that is as it was written, with its ``step``; None without one."""
        for stray in strays(self._folder) if self._folder.is_dir() else ():
            clear_stray(stray)
        for folder in self._newest_first():
            try:
                expected = json.loads((folder / _METADATA).read_text())["sha256"]
                if sha256_of(folder / _TENSORS) == expected:
                    state: dict[str, Any] = torch.load(folder / _TENSORS, map_location="cpu", weights_only=True)
                    return state
            except (OSError, ValueError, KeyError, TypeError):
                pass
            self._on_notice(f"{folder} is damaged and is passed over.")
            shutil.rmtree(folder, ignore_errors=True)  # it would count as one of the newest two
        return None

    def _newest_first(self) -> list[Path]:
        folders = [each for each in self._folder.glob("step-*") if each.name.rpartition("-")[2].isdecimal()]
        return sorted(folders, key=lambda each: int(each.name.rpartition("-")[2]), reverse=True)
