"""The most memory that this process has needed since a moment."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import torch

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
