"""Signal handling: SIGTERM (`kill`, job schedulers) and SIGHUP (a closed terminal) end a study in order like Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from tutti.errors import ClusterError, Fault

EXIT_CODE = 130  # as shells report for a process ended by Ctrl-C
CHECKS, CHECK_SECONDS = 30, 0.1
LOST_SECONDS = 75.0  # more than the minute in which the driver may deliver what MLflow has not got
_SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has none
_SHOW_CURSOR = "\033[?25h"  # which a live table hides


@contextmanager
def terminated_as_interrupted(is_lost: Callable[[], bool] | None = None) -> Iterator[None]:
    """Treats SIGTERM and SIGHUP like SIGINT while the block runs. Enter it after Ray has started, which sets handlers.

    If a shell made the process ignore SIGINT, as for a command with &, they still end the block. A SIGHUP that is
    ignored, as with nohup, stays so. Does nothing outside the main thread, where Python handles no signals.

    Args:
        is_lost: whether the processes that an orderly end needs have ended already. `timeout` and Slurm send SIGTERM to
            all processes of a job: without its Ray a driver would hang for a minute, and then be aborted.
    """
    if not _handles_signals():
        yield
        return
    sigint_was_ignored = not callable(signal.getsignal(signal.SIGINT))

    def terminated(number: int, _: FrameType | None) -> None:
        # Of a closed terminal's SIGHUP its shell and the kernel send one each. The second would act as a second Ctrl-C.
        if number == _SIGHUP:
            signal.signal(number, signal.SIG_IGN)
        # Check now: while Ray later tries to reach lost processes, it blocks all Python threads.
        if is_lost and _becomes_true(is_lost):
            _exit()
        if sigint_was_ignored and not callable(signal.getsignal(signal.SIGINT)):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    numbers = [signal.SIGTERM, *([] if _SIGHUP is None or _is_ignored(_SIGHUP) else [_SIGHUP])]
    previous = {number: signal.signal(number, terminated) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            if not _is_ignored(number):  # as the second SIGHUP is, which may come only now
                signal.signal(number, handler)


@contextmanager
def hangups_deferred() -> Iterator[None]:
    """Defers SIGHUP to the end of the block. Processes started in the block inherit this, and so never get one.

    A closed terminal sends it to all processes of a command, but without its Ray a driver cannot end in order.
    """
    if _SIGHUP is None:
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [_SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextmanager
def ended_without(is_lost: Callable[[], bool], fault: Fault) -> Iterator[None]:
    """Ends the process if what the block needs is lost, and the block has not ended by itself some seconds later.

    A driver may wait for ever for actors on a node that is gone. What it has done is stored, as if it had been killed.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(CHECK_SECONDS * 10):
            if is_lost() and not over.wait(LOST_SECONDS):
                _print(f"error: {fault}")
                os._exit(ClusterError.exit_code)

    threading.Thread(target=watch, name="watch-ray", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _becomes_true(condition: Callable[[], bool]) -> bool:
    for _check in range(CHECKS):
        if condition():
            return True
        time.sleep(CHECK_SECONDS)
    return False


def _exit() -> None:
    _print("Terminated, and Ray with it. To go on, run the command again, `tutti tune` with --resume.")
    os._exit(EXIT_CODE)


def _print(text: str) -> None:
    """Writes to stderr without Python's streams, which the signal may have interrupted."""
    cursor = _SHOW_CURSOR if os.isatty(2) else ""
    with suppress(OSError):  # nobody reads stderr
        os.write(2, f"{cursor}{text}\n".encode())


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Raises a KeyboardInterrupt only at the end of the block, however it ends, or on a second Ctrl-C.

    While Ray starts it could be lost: Python ignores exceptions in finalizers and in callbacks of weak references.
    """
    previous = signal.getsignal(signal.SIGINT)
    if not _handles_signals() or not callable(previous):
        yield
        return
    count = 0

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            previous(number, frame)
        _print("Interrupted: ending as soon as Ray has started; press Ctrl-C again to end at once")

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    except Exception as error:
        if count:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, previous)
    if count:
        raise KeyboardInterrupt


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignores SIGINT during a cleanup, which a second Ctrl-C would cut short and so leave processes behind."""
    if not _handles_signals():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


def _handles_signals() -> bool:
    return threading.current_thread() is threading.main_thread()
