"""Matplotlib without a window, whatever the environment names."""

from __future__ import annotations

import os
import sys


def load_matplotlib() -> None:
    """Imports matplotlib, which fails where ``$MPLBACKEND`` names a backend that is not installed.

    Every notebook sets it for its own process and all that it starts. Our pictures have a canvas of their own.
    """
    if "matplotlib" in sys.modules:
        return
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib as mpl  # noqa: F401
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
