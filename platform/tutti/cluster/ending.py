"""A study ends in good order when its process is told to: SIGTERM, as `kill` and clusters send it, is Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130  # as a shell says of what Ctrl-C has ended
LOOKS, LOOK_SECONDS = 10, 0.1


@contextmanager
def terminated_as_interrupted(is_lost: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """SIGTERM does what SIGINT does while the block runs. Ray sets a handler of its own as it starts: enter it after.

    Does nothing outside of the main thread, where Python takes no signals.

    Args:
        is_lost: whether what the block needs to end in order has ended already. SIGTERM is often sent to all processes
            of a job, as by `timeout` and Slurm: without its Ray a driver would hang for a minute, and then be aborted.
    """
    if not _takes_signals():
        yield
        return

    def terminated(*_: object) -> None:
        for _look in range(LOOKS):  # at once, for Ray soon holds every thread of Python while it looks for what is gone
            if is_lost():
                print("Terminated, and Ray with it: go on with --resume", file=sys.stderr, flush=True)
                os._exit(EXIT_CODE)
            time.sleep(LOOK_SECONDS)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Keeps a KeyboardInterrupt until the end of the block, unless a second one comes.

    Raised while Ray starts it may be lost: Python drops what is raised in a finalizer or a weak reference's callback.
    """
    before = signal.getsignal(signal.SIGINT)
    if not _takes_signals() or not callable(before):  # such as one that a shell has told to ignore it
        yield
        return
    came = 0

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came += 1
        if came > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
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
