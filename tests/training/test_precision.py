from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from tutti.training import precision


def _given(**arguments: Any) -> dict[str, Any]:
    return precision.with_precision(arguments, cpu=True)


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc/cpuinfo")
def test_a_cpu_takes_bf16_where_it_computes_in_it() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    assert _given()["bf16"] is ("avx512_bf16" in flags or "amx_bf16" in flags)


@pytest.mark.parametrize("arguments", [{"bf16": False}, {"bf16": True}, {"fp16": False}])
def test_what_the_user_says_stays(arguments: dict[str, Any]) -> None:
    assert _given(**arguments) == arguments


@pytest.mark.parametrize(
    ("bf16", "capability", "chosen"),
    [(True, (9, 0), {"bf16": True, "tf32": True}), (False, (7, 0), {"fp16": True})],
    ids=["H100", "V100"],
)
def test_a_gpu_takes_the_fastest_it_has(
    monkeypatch: pytest.MonkeyPatch, bf16: bool, capability: tuple[int, int], chosen: dict[str, bool]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert precision.with_precision({}, cpu=False) == chosen


@pytest.mark.parametrize(("bf16", "name"), [(True, "bf16"), (False, "float32")])
def test_predictions_run_in_the_precision_of_training(tmp_path: Path, bf16: bool, name: str) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=bf16)
    assert precision.name_of(args) == name
    with precision.autocast(args):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (torch.bfloat16 if bf16 else torch.float32)
