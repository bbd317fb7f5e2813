"""The console that every command prints to, and the name it is called by."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

# Paths may contain what rich would take for markup or emoji; and a command to copy must not be broken into lines.
console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
if not console.is_terminal:
    console.width = 120  # a log has no width; the default of 80 columns would break words in tables


def program() -> str:
    """The command ``tutti`` as the user can type it: by its name if it is on the PATH, otherwise as it was called."""
    if shutil.which("tutti"):
        return "tutti"
    called = Path(sys.argv[0])
    return f"{shlex.quote(sys.executable)} -m tutti" if called.name == "__main__.py" else shlex.quote(str(called))


def table_of_numbers(*texts: str, numbers: Iterable[str], caption: str | None = None) -> Table:
    """An empty table: columns of texts, then right-aligned columns of numbers."""
    table = Table(caption=caption, caption_justify="left")
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
