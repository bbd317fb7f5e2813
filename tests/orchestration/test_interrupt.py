"""What a study says of Ctrl-C, and what is left of Ray Tune's handler of it."""

from __future__ import annotations

import signal

from tutti.orchestration.driver.interrupt import Interrupt


def test_ctrl_c_is_told_once_and_the_handler_of_before_is_there_again_afterwards():
    messages: list[str] = []
    closed: list[None] = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(messages.append, close=lambda: closed.append(None)) as interrupt:
        signal.signal(signal.SIGINT, lambda *_: None)  # as Tune does when it starts
        interrupt.setup()
        interrupt.on_step_end(1, [])
        assert messages == []
        signal.signal(signal.SIGINT, before)  # as Tune's handler does when it is called
        interrupt.on_step_end(2, [])
        interrupt.on_step_end(3, [])
        assert (len(messages), len(closed)) == (1, 1)
        assert "--resume" in messages[0]
    assert signal.getsignal(signal.SIGINT) == before


def test_a_study_that_nobody_interrupted_leaves_no_handler_of_tunes_behind():
    messages: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(messages.append, close=lambda: None) as interrupt:
        signal.signal(signal.SIGINT, lambda *_: None)
        interrupt.setup()
        interrupt.on_step_end(1, [])
    assert messages == []
    assert signal.getsignal(signal.SIGINT) == before
