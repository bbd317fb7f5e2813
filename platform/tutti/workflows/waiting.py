"""A sign of life of what takes long and prints nothing meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from rich.console import Console

_PATIENCE = 2.0  # seconds


@contextmanager
def waiting(what: str, *, in_logs: bool = True, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Says ``what`` is going on once the block has taken two seconds: a moving line on a terminal, else a plain one.

    It goes to the standard error, since it is no part of a command's output. Yields a function that says what is going
    on now, on a terminal.

    Args:
        in_logs: whether there is a line where there is no terminal.
        quiet: whether nothing is said at all.
    """
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True, quiet=quiet)
    status = console.status(f"{what} ...")

    def show() -> None:
        with suppress(OSError, ValueError):  # the output is closed: nobody waits
            if console.is_terminal:
                status.start()
            elif in_logs:
                console.print(f"{what} ...")

    timer = Timer(_PATIENCE, show)
    timer.daemon = True
    timer.start()
    try:
        yield lambda now: status.update(f"{now} ...")
    finally:
        timer.cancel()
        timer.join()
        status.stop()
