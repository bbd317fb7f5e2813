"""A study ends in good order when its process is told to: SIGTERM, as `kill` and clusters send it, is Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

EXIT_CODE = 130  # as a shell says of what Ctrl-C has ended
LOOKS, LOOK_SECONDS = 30, 0.1
_SHOW_CURSOR = "\033[?25h"  # a live table hides it


@contextmanager
def terminated_as_interrupted(is_lost: Callable[[], bool] | None = None) -> Iterator[None]:
    """SIGTERM does what SIGINT does while the block runs. Ray sets a handler of its own as it starts: enter it after.

    Where a shell has told the process to ignore SIGINT, as of a command with &, SIGTERM still ends the block. Does
    nothing outside of the main thread, where Python takes no signals.

    Args:
        is_lost: whether what the block needs to end in order has ended already. SIGTERM is often sent to all processes
            of a job, as by `timeout` and Slurm: without its Ray a driver would hang for a minute, and then be aborted.
    """
    if not _takes_signals():
        yield
        return
    ignored = not callable(signal.getsignal(signal.SIGINT))

    def terminated(*_: object) -> None:
        if is_lost and _soon(is_lost):  # now, for Ray soon holds every thread of Python while it looks for what is gone
            _leave()
        if ignored and not callable(signal.getsignal(signal.SIGINT)):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _soon(is_lost: Callable[[], bool]) -> bool:
    for _look in range(LOOKS):
        if is_lost():
            return True
        time.sleep(LOOK_SECONDS)
    return False


def _leave() -> None:
    _say("Terminated, and Ray with it. To go on, run the command again, `tutti tune` with --resume.")
    os._exit(EXIT_CODE)


def _say(text: str) -> None:
    """What a handler says must not depend on what it has interrupted, such as a table that is being written."""
    cursor = _SHOW_CURSOR if os.isatty(2) else ""
    with suppress(OSError):  # nobody reads it
        os.write(2, f"{cursor}{text}\n".encode())


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Keeps a KeyboardInterrupt until the end of the block, however it ends, unless a second one comes.

    Raised while Ray starts it may be lost: Python drops what is raised in a finalizer or a weak reference's callback.
    """
    before = signal.getsignal(signal.SIGINT)
    if not _takes_signals() or not callable(before):
        yield
        return
    came = 0

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came += 1
        if came > 1:
            before(number, frame)
        _say("Interrupted: it ends as soon as Ray has started, or with one more Ctrl-C")

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    except Exception as error:
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def undisturbed() -> Iterator[None]:
    """What a second Ctrl-C must not cut short, for it would leave processes behind."""
    if not _takes_signals():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _takes_signals() -> bool:
    return threading.current_thread() is threading.main_thread()
