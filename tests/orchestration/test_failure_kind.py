"""Which failures of workers are tried again."""

from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError
from ray.train.v2._internal.execution.worker_group.poll import _truncate_error_string

from tutti.errors import BackboneError, Fault, StorageError
from tutti.orchestration.broker.failure_kind import find_program_error, traceback_location

FAULT = Fault("it", "be there", "nothing", "put it there")
GLOO = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:31190")


@pytest.mark.parametrize(
    "error",
    [KeyError("a"), TypeError("no"), BackboneError(FAULT), RuntimeError("shape '[2]' is invalid"), ZeroDivisionError()],
)
def test_a_mistake_is_told_even_where_the_other_ranks_lost_their_peer(error):
    assert find_program_error({0: error}) == 0
    assert find_program_error({0: GLOO, 1: error}) == 1


@pytest.mark.parametrize(
    "failures",
    [
        {0: ActorDiedError()},
        {0: ActorDiedError(), 1: GLOO},
        {0: ActorDiedError(), 1: KeyError("a")},
        {0: GLOO},
        {0: OSError("the disk is away")},
        {0: StorageError(FAULT)},
        {0: RuntimeError("CUDA error: uncorrectable ECC error encountered")},
        {0: RuntimeError("NCCL error in: socket.cpp")},
    ],
)
def test_a_loss_is_no_mistake(failures):
    assert find_program_error(failures) is None


def test_the_last_line_of_the_rank_s_own_traceback_is_its_place():
    text = (
        'Training failed due to worker errors:\n[Rank 0,2 Error Snippet]:\n  File "/a/b/c.py", line 3, in outer\n'
        '  File "/lib/tutti/training/trainer.py", line 80, in step\nValueError: x\n'
        '[Rank 1 Error Snippet]:\n  File "/a/other.py", line 9, in wait\nRuntimeError: gloo'
    )
    assert traceback_location(2, text) == " in step (training/trainer.py, line 80)"
    assert traceback_location(1, text) == " in wait (a/other.py, line 9)"
    assert traceback_location(0, "nothing") == ""


def test_a_traceback_that_ray_cut_has_its_place_in_what_is_left_of_its_end_or_none():
    head, last = '  File "/a/b.py", line 3, in outer\n', '  File "/c/d.py", line 9, in inner\n'
    for text, place in (
        (head + "    more\n" * 200 + last + "ValueError: x", " in inner (c/d.py, line 9)"),
        (head + last + f"ValueError: {'x' * 1000}", ""),
    ):
        assert traceback_location(0, f"[Rank 0 Error Snippet]:\n{_truncate_error_string(text)}") == place
