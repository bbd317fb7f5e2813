"""Measures what the steps of a training take: rows, tokens, seconds and memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tutti.records import Usage
from tutti.training.machine.ranks import gathered


class Meter:
    """A stopwatch of training steps; evaluations and saving are left out by ``pause``.

    Args:
        device: that of the model; if it is a GPU, the caller waits for its steps before ``pause``.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._usage = device, Usage()
        self._began: float | None = None

    def start(self) -> None:
        """Begins to measure seconds and memory, or goes on."""
        forget_peaks(self._device)
        self._began = time.perf_counter()

    def pause(self) -> None:
        """Stops to measure seconds and memory."""
        if self._began is not None:
            seconds = time.perf_counter() - self._began
            self._usage += Usage(0, 0, seconds, peak_memory(), peak_gpu_memory(self._device))
            self._began = None

    def count(self, batches: Sequence[Mapping[str, Any]]) -> None:
        """Counts the rows and tokens of batches as of ``TaskRows``, without rows of weight 0 and without padding.

        The batches must be on the CPU.
        """
        rows = sum(int((batch["weights"] > 0).sum()) for batch in batches)
        self._usage += Usage(rows, sum(int(batch["attention_mask"].sum()) for batch in batches))

    def take(self) -> Usage:
        """What was measured since the last ``take``, over all ranks; every rank must call it.

        Rows and tokens are summed; seconds and memory are those of the rank that needed most.
        """
        by_rank = gathered(self._usage)
        self._usage = Usage()
        rows, tokens = (sum(getattr(each, name) for each in by_rank) for name in ("rows", "tokens"))
        most = (max(getattr(each, name) for each in by_rank) for name in ("seconds", "memory", "gpu_memory"))
        return Usage(rows, tokens, *most)


_FORGET_PEAK = "5"  # see proc(5), clear_refs


def forget_peaks(device: torch.device) -> None:
    """Has the peaks begin anew. Where the system does not allow that (macOS), host memory has its peak since ever."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory() -> int:
    """The highest resident set size in bytes; 0 where the system does not tell it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_gpu_memory(device: torch.device) -> int:
    """The most bytes that tensors took at once on a GPU; 0 on a CPU."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0
