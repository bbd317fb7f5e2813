"""Ctrl-C while Ray Tune runs a study."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, Self

from ray import tune


class Interrupt(tune.Callback):
    """Tells at once of a Ctrl-C, on which Tune ends its trials without a word, and that takes a while.

    As a context it gives SIGINT its handler back: Tune leaves its own one there, which would swallow the next Ctrl-C.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._before = signal.getsignal(signal.SIGINT)
        self._of_tune: Any = self._before

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes a snapshot of all it was given, and no run ever reads it back."""
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.on_step_end(0, [])  # it may have come after the last step
        if self._before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)

    def setup(self, **info: Any) -> None:
        self._of_tune = signal.getsignal(signal.SIGINT)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Tune's handler puts the earlier one back as soon as it is called: that is how it is known here."""
        now = signal.getsignal(signal.SIGINT)
        if now != self._of_tune:
            self._of_tune = now
            self._notify("Interrupted: the trials that run are being ended, and can go on with --resume")
