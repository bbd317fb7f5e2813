"""What a pool's worker does, without Ray."""

from __future__ import annotations

import torch.distributed as dist
from accelerate.state import AcceleratorState, DistributedType, PartialState

from tutti.orchestration.pool import _leave_group, reason_of


def test_a_trial_of_one_worker_is_not_wrapped_for_several(monkeypatch, tmp_path):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    _leave_group()
    assert not dist.is_initialized()
    AcceleratorState._reset_state(reset_partial_state=True)
    assert PartialState(cpu=True).distributed_type is DistributedType.NO
    _leave_group()  # nothing to leave


def test_a_worker_s_failure_is_told_in_one_line_with_its_rank():
    failures = {1: ValueError("later"), 0: OSError("Traceback\n  at line 3\nno space left on device\n")}
    assert reason_of(failures) == "worker 0: OSError: no space left on device"
    assert reason_of({2: KeyError()}) == "worker 2: KeyError: KeyError"
    assert len(reason_of({0: ValueError("x" * 5000)})) == 500
