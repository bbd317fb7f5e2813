"""The console that every command prints to, and the name it is called by."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console

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
