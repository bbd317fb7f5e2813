"""The benchmark for a GPU, tried on a CPU with tiny models: it names all that it measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks/gpu/measure.py"
SPEEDS = ("ms_per_step", "examples_per_second", "tokens_per_second")


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_measures_every_contender_and_runs_without_one(tmp_path: Path) -> None:
    results = tmp_path / "gpu.json"
    command = [sys.executable, SCRIPT, "--device", "cpu", "--tiny", "--seconds", "900", "--json", results]
    subprocess.run(command, check=True, cwd=tmp_path)
    values = json.loads(results.read_text())
    assert not [name for name in values if name.endswith("_failed")], values
    contenders = [
        f"{name}_{contender}"
        for name in ("encoder", "decoder")
        for contender in ("packed", "padded", "bare", "trainer", "compiled")
    ]
    for contender in (*contenders, "lora", "lora_trainer"):
        assert all(values[f"{contender}_{speed}"] > 0 for speed in SPEEDS), contender
    ratios = ("packed_vs_padded", "vs_bare", "vs_trainer", "packed_share_of_peak", "compiled_vs_packed")
    assert {f"{name}_{ratio}" for name in ("encoder", "decoder") for ratio in ratios} < values.keys()
    assert {"peak_tflops", "lora_vs_trainer", "device", "torch", "seconds"} < values.keys()
