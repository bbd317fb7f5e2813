"""A study as every workflow knows it: its settings, its folder, its data, and the console that workflows print to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder, find_study
from tutti.config.load import parse_study
from tutti.config.study import StudyConfig
from tutti.data.prepared import Prepared, load_prepared
from tutti.workflows.console import console as shared_console

if TYPE_CHECKING:
    from rich.console import Console


class StudyBase:
    """A study: its settings, its folder and its data.

    Args:
        console: what workflows print to while they work.
        again: returns the command that goes on with an interrupted study, without the setting ``but``; none for Python.
    """

    def __init__(
        self,
        config: StudyConfig,
        folder: StudyFolder,
        *,
        console: Console = shared_console,
        again: Callable[..., str] | None = None,
    ) -> None:
        self.config, self.folder, self.console, self.again = config, folder, console, again

    @property
    def name(self) -> str:
        return self.config.study

    @cached_property
    def prepared(self) -> Prepared:
        """The study's rows, as its first run prepared them; raises StudyError before that."""
        return load_prepared(self.folder.data)

    @property
    def bank(self) -> Bank:
        """Predictions of the finished trials: ``study.bank.predictions("t0003", "TASK", "validation")``."""
        return Bank(self.folder.bank)

    @property
    def stored(self) -> StudyBase:
        """The study as it was begun, which its folder holds."""
        return self

    def with_config(self, config: StudyConfig) -> StudyBase:
        """The study with other settings in the same folder."""
        return StudyBase(config, self.folder, console=self.console, again=self.again)


def open_stored(folder: StudyFolder, *, like: StudyBase) -> StudyBase:
    """The study that a folder holds, which prints and goes on as ``like`` does.

    Raises:
        ConfigError: if the folder's study file is damaged.
    """
    return StudyBase(parse_study(folder.study_file), folder, console=like.console, again=like.again)


def found_study(name: str, *, like: StudyBase) -> StudyBase:
    """The study of this folder, or of this name beside ``like``."""
    return open_stored(find_study(name, beside=like.folder.path.parent), like=like)
