"""The console that workflows and commands print to, and the name by which the command is called."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console

from tutti.config.folder import StudyFolder, studies_folder
from tutti.copies import address_of
from tutti.workflows.listing import wrap

_COMMAND = re.compile(r"`[^`]+`\S*|\S+")


class _Console(Console):
    """A console that breaks sentences between words in a terminal, and nowhere else.

    A log keeps them whole. So does a terminal with what is to be copied: a command in backticks, and lines that begin
    with spaces or with ``wrote``.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal and len(objects) == 1 and isinstance(objects[0], str):
            lines = objects[0].split("\n")
            objects = ("\n".join(line if line.startswith((" ", "wrote ")) else self._wrapped(line) for line in lines),)
        super().print(*objects, **options)

    def _wrapped(self, line: str) -> str:
        return "\n".join(wrap(_COMMAND.findall(line), width=self.width))


def make_console(file: IO[str] | None = None, *, stderr: bool = False) -> Console:
    """The console that everything is printed to.

    Args:
        file: instead of the standard output.
        stderr: whether it is the standard error.
    """
    # Paths may contain what rich would take for markup or emoji; and a command to copy must not be broken into lines.
    made = _Console(file=file, stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = 120  # a log has no width; the default of 80 columns would break words in tables
    return made


console = make_console()


class _BestEffortFile:
    """A file that drops everything from the first write on that fails."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._is_lost = file, False

    def write(self, text: str) -> int:
        if not self._is_lost:
            try:
                return self._file.write(text)
            except OSError:
                self._is_lost = True
        return len(text)

    def flush(self) -> None:
        if not self._is_lost:
            try:
                self._file.flush()
            except OSError:
                self._is_lost = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def best_effort_console(file: IO[str] | None = None) -> Console:
    """A console for what outlives its output, such as a study whose terminal is closed or whose log's disk is full.

    Args:
        file: what it prints to; by default, what ``console`` does.
    """
    return make_console(cast(IO[str], _BestEffortFile(file or console.file)))


def program() -> str:
    """The command ``tutti`` as the user can type it: by its name if it is on the PATH, otherwise as it was called."""
    if shutil.which("tutti"):
        return "tutti"
    called = Path(sys.argv[0])  # in a notebook, its kernel
    return shlex.quote(str(called)) if called.stem == "tutti" else f"{shlex.quote(sys.executable)} -m tutti"


def study_argument(folder: StudyFolder) -> str:
    """The study as a command-line argument: its name in the default folder, else its quoted path or address."""
    named = folder.path.parent == studies_folder()
    return shlex.quote(folder.name if named else address_of(folder.path) or str(folder.path))


def show_next(console: Console, *commands: str) -> None:
    """Ends what a command prints with what its user can do next: commands to copy."""
    console.print("Next:")
    for command in commands:
        console.print(f"  {program()} {command}")


def quiet_console() -> Console:
    """A console that prints nothing."""
    return Console(quiet=True)
