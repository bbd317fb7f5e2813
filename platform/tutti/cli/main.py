"""The command ``tutti`` where Python enters it: Ctrl-C ends it without a traceback while it is still being imported."""

from __future__ import annotations

import sys


def run() -> None:
    """Entry point: see ``tutti.cli.app.run``."""
    try:
        from tutti.cli import app
    except KeyboardInterrupt:  # pandas alone takes a while, a long one from a slow disk
        sys.exit(130)
    app.run()
