from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def takes_ctrl_c() -> Iterator[None]:
    """Restores Python's handler of SIGINT, which pytest-xdist's workers ignore."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)
