"""What a process does that is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tutti.cluster import ending
from tutti.cluster.ending import (
    EXIT_CODE,
    hangups_deferred,
    interrupts_deferred,
    interrupts_ignored,
    terminated_as_interrupted,
)
from tutti.errors import Fault

pytestmark = pytest.mark.usefixtures("takes_ctrl_c")

TERMINATED = """
import os, signal, time
from tutti.cluster.ending import terminated_as_interrupted

with terminated_as_interrupted(lambda: {is_lost}):
    signal.signal(signal.SIGINT, lambda *_: print("interrupted"))  # as Ray Tune does, which ends its trials then
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep({seconds})
print("in order")
"""

PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


class _Finalised:
    """Python drops what is raised here."""

    def __del__(self) -> None:
        _interrupt()


def test_an_interrupt_is_raised_at_the_end_of_the_block():
    went_on: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        _run_steps(_interrupt, lambda: went_on.append(True))
    assert went_on
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_raised_where_the_block_fails_too():
    with pytest.raises(KeyboardInterrupt):
        _run_steps(_interrupt, lambda: 1 / 0)


def test_a_second_interrupt_ends_the_block_at_once():
    went_on: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        _run_steps(_interrupt, _interrupt, lambda: went_on.append(True))
    assert not went_on


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_is_not_lost():
    with pytest.raises(KeyboardInterrupt):
        _run_steps(_interrupt, _Finalised)


def test_a_block_that_nobody_interrupts_raises_nothing():
    with interrupts_deferred():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_was_told_to_ignore_interrupts_goes_on_doing_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_driver_whose_ray_was_terminated_with_it_does_not_wait_for_it():
    began = time.monotonic()
    ended = _terminated(is_lost=True, seconds=60)
    assert ended.returncode == EXIT_CODE
    assert ended.stdout == ""
    assert "`tutti tune` with --resume" in ended.stderr
    assert time.monotonic() - began < 40


def test_a_driver_that_is_terminated_alone_ends_in_order():
    ended = _terminated(is_lost=False, seconds=0)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\nin order\n", "")


def test_what_a_shell_has_told_to_ignore_ctrl_c_is_still_ended_by_sigterm():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)


def test_sigterm_does_not_break_into_what_no_second_ctrl_c_may_cut_short():
    went_on = False
    with terminated_as_interrupted(), interrupts_ignored():
        signal.raise_signal(signal.SIGTERM)
        went_on = True
    assert went_on
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("takes_hangup")
def test_the_second_sighup_of_a_closed_terminal_does_not_cut_the_orderly_end_short():
    went_on: list[bool] = []

    def ended_in_order() -> None:
        try:
            with terminated_as_interrupted():
                _hang_up()
        finally:
            _hang_up()
            went_on.append(True)

    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        ended_in_order()
    _hang_up()
    assert went_on


@pytest.mark.usefixtures("takes_hangup")
def test_what_nohup_has_told_to_ignore_a_closed_terminal_goes_on():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with terminated_as_interrupted():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.usefixtures("takes_hangup")
def test_a_closed_terminal_ends_the_driver_once_its_ray_has_started_and_none_of_ray_s_processes():
    of_ray: list[subprocess.Popen[str]] = []

    def start() -> None:
        with hangups_deferred():
            _hang_up()
            of_ray.append(subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], **PIPES))

    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        start()
    [process] = of_ray
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    process.communicate("end\n", timeout=30)
    assert process.returncode == 0


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def _hang_up() -> None:
    signal.raise_signal(signal.SIGHUP)


def _run_steps(*steps: Callable[[], object]) -> None:
    with interrupts_deferred():
        for step in steps:
            step()


def _terminated(*, is_lost: bool, seconds: float) -> subprocess.CompletedProcess[str]:
    program = TERMINATED.format(is_lost=is_lost, seconds=seconds)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_block_that_lasts_longer_than_what_it_needs_ends_the_process(is_lost, monkeypatch, capfd):
    ended = threading.Event()
    monkeypatch.setattr(ending, "LOST_SECONDS", 0.01)
    monkeypatch.setattr(ending, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    with ending.ended_without(lambda: is_lost, Fault("Ray", "stay up", "nothing", "see why")):
        assert ended.wait(10 if is_lost else 0.1) is is_lost
    assert ("error: Ray must stay up" in capfd.readouterr().err) is is_lost


def test_a_block_that_ends_soon_after_what_it_needs_ends_in_order(monkeypatch):
    exits: list[int] = []
    monkeypatch.setattr(ending, "LOST_SECONDS", 0.3)
    monkeypatch.setattr(ending, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(os, "_exit", exits.append)
    with ending.ended_without(lambda: True, Fault("Ray", "stay up", "nothing", "see why")):
        time.sleep(0.1)
    time.sleep(0.4)  # longer than the process would have been left alone
    assert exits == []
