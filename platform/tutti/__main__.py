"""``python -m tutti`` is the command ``tutti``."""

from tutti.cli.main import run

run()
