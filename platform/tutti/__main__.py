"""``python -m tutti`` is the command ``tutti``, which imports nothing from the current folder."""

import sys
from pathlib import Path

_checkout = Path(__file__).resolve().parents[1]  # Tutti itself may be imported from the current folder
if not sys.flags.safe_path and sys.path[:1] == [str(Path.cwd())] and Path.cwd() != _checkout:
    del sys.path[0]

from tutti.cli.main import run  # noqa: E402

run()
