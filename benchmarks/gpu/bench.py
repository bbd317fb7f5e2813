"""What ``measure.py`` measures, and how: sizes, a clock, and results that are on disk after each contender."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments


@dataclass(frozen=True)
class Sizes:
    """What is measured: the backbones' shapes, the tokens of a batch, the longest row, and steps."""

    encoder: dict[str, int]
    decoder: dict[str, int]
    tokens: dict[str, int]
    longest: int
    warm: int
    steps: int
    matrix: int
    rows: int


FULL = Sizes(
    encoder={"vocab_size": 30_522},
    decoder={
        "vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864,
    },
    tokens={"encoder": 32_768, "decoder": 16_384},
    longest=256, warm=4, steps=10, matrix=8192, rows=8_000,
)  # fmt: skip
SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TINY = Sizes(
    encoder=SMALL, decoder={**SMALL, "num_key_value_heads": 1}, tokens={"encoder": 256, "decoder": 256},
    longest=48, warm=1, steps=2, matrix=128, rows=100,
)  # fmt: skip


class Bench:
    """Measures one contender after another, and writes what is known after each."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.device = torch.device(options.device)
        self.sizes = TINY if options.tiny else FULL
        self.folder, self.file = folder, options.json
        self.deadline = time.perf_counter() + options.seconds
        self.results: dict[str, float | str] = {"device": self._name(), "torch": torch.__version__}

    def _name(self) -> str:
        return torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def write(self, **values: float | str) -> None:
        self.results |= values
        print(", ".join(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}"
                        for name, value in values.items()), flush=True)  # fmt: skip
        if self.file is not None:
            temporary = self.file.with_suffix(".tmp")
            temporary.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf8")
            temporary.replace(self.file)

    def part(self, name: str, measure: Callable[[], dict[str, float | str]]) -> None:
        """One contender. An error of it is a result too."""
        if time.perf_counter() > self.deadline:
            self.write(**{f"{name}_skipped": "no time was left"})
            return
        torch._dynamo.reset()
        gc.collect()  # a trainer and its callbacks form a cycle
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            values = measure()
        except Exception as error:  # whatever it is: the other contenders are to be measured
            self.write(**{f"{name}_failed": f"{type(error).__name__}: {str(error)[:300]}"})
            return
        if self.device.type == "cuda":
            values["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        self.write(**{f"{name}_{key}": value for key, value in values.items()})

    def ratio(self, name: str, one: str, other: str, key: str = "examples_per_second") -> None:
        """How much more one contender does than another, where both were measured."""
        more, less = (self.results.get(f"{each}_{key}") for each in (one, other))
        if isinstance(more, float) and isinstance(less, float):
            self.write(**{name: more / less})

    def peak(self) -> dict[str, float | str]:
        """Operations per second of products of large square matrices in bf16."""
        size = self.sizes.matrix
        left, right = (torch.randn(size, size, device=self.device).bfloat16() for _ in range(2))
        seconds = []
        for _ in range(12):
            began = self.now()
            left @ right
            seconds.append(self.now() - began)
        return {"tflops": 2 * size**3 / median(seconds[2:]) / 1e12}


class Steps(TrainerCallback):
    """Seconds of the steps after the first ``warm`` ones."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.seconds = 0.0

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._bench.sizes.warm:
            self._began = self._bench.now()
        if state.global_step == state.max_steps:
            self.seconds = self._bench.now() - self._began
