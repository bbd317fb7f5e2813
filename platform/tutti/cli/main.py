"""The entry point of the command ``tutti``. Ctrl-C ends it without a traceback even while modules are imported."""

from __future__ import annotations

import io
import sys

from tutti.workflows.waiting import waiting


def run() -> None:
    """Entry point: see ``tutti.cli.app.run``."""
    try:
        with waiting("Loading Tutti", in_logs=False):
            from tutti.cli import app
    except KeyboardInterrupt:  # importing pandas from a slow disk takes seconds
        sys.exit(130)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a sign that the terminal's encoding lacks must not end a study
    app.run()
