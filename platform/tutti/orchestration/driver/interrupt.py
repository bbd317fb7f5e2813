"""Announces Ctrl-C while Ray Tune runs a study."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, Self

from ray import tune

from tutti.orchestration.driver.snapshot import NotSnapshotted


class Interrupt(NotSnapshotted, tune.Callback):
    """Notifies users of a Ctrl-C at once: Tune silently ends its trials first, which takes a while.

    As a context manager it restores SIGINT's handler. Tune leaves its own in place, which would ignore the next Ctrl-C.

    Args:
        close: called once, so that nobody waits for further reports.
    """

    def __init__(self, notify: Callable[[str], None], *, close: Callable[[], object]) -> None:
        self._notify, self._close = notify, close
        self._previous_handler = signal.getsignal(signal.SIGINT)
        self._tune_handler: Any = self._previous_handler

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.on_step_end(0, [])  # Ctrl-C may have come after the last step
        if self._previous_handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._previous_handler)

    def setup(self, **info: Any) -> None:
        self._tune_handler = signal.getsignal(signal.SIGINT)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Detects Ctrl-C by its handler: Tune's restores the previous one as soon as it is called."""
        handler = signal.getsignal(signal.SIGINT)
        if handler != self._tune_handler:
            self._tune_handler = handler
            self._close()
            self._notify("Interrupted: stopping the running trials; --resume continues them")
