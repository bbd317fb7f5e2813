from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, TrainingArguments

from tutti.training.machine import precision


def _given(**arguments: Any) -> dict[str, Any]:
    return precision.with_precision(arguments, cpu=True, model_type="bert")


@pytest.mark.parametrize(("bf16_seconds", "chosen"), [(0.5, True), (0.9, False), (1.6, False)])
def test_a_cpu_takes_bf16_only_where_it_is_the_faster(monkeypatch, bf16_seconds, chosen):
    now = 0.0

    def linear(rows: torch.Tensor, weight: torch.Tensor) -> None:
        nonlocal now
        now += bf16_seconds if rows.dtype == torch.bfloat16 else 1.0

    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    monkeypatch.setattr(precision.time, "perf_counter", lambda: now)
    precision.cpu_gains_from_bf16.cache_clear()
    assert _given()["bf16"] is chosen
    precision.cpu_gains_from_bf16.cache_clear()


def test_a_cpu_without_bf16_takes_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, flag, lambda: False)
    precision.cpu_gains_from_bf16.cache_clear()
    assert _given()["bf16"] is False
    precision.cpu_gains_from_bf16.cache_clear()


@pytest.mark.parametrize("arguments", [{"bf16": False}, {"bf16": True}, {"fp16": True}])
def test_what_the_user_says_stays(arguments: dict[str, Any]) -> None:
    assert _given(**arguments) == arguments


@pytest.mark.parametrize("bf16", [True, False])
def test_without_fp16_the_faster_of_the_others_is_taken(monkeypatch: pytest.MonkeyPatch, bf16: bool) -> None:
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: bf16)
    assert _given(fp16=False) == {"fp16": False, "bf16": bf16}
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    chosen = precision.with_precision({"fp16": False}, cpu=False, model_type="bert")
    assert chosen == ({"fp16": False, "bf16": True} if bf16 else {"fp16": False})


@pytest.mark.parametrize(
    ("bf16", "capability", "chosen"),
    [(True, (9, 0), {"bf16": True, "tf32": True}), (False, (7, 0), {"fp16": True})],
    ids=["H100", "V100"],
)
def test_a_gpu_takes_the_fastest_it_has(monkeypatch, bf16, capability, chosen):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert precision.with_precision({}, cpu=False, model_type="bert") == chosen


@pytest.mark.parametrize(
    ("began_in", "chosen"), [("fp16", {"fp16": True}), ("bf16", {"bf16": True}), ("float32", {"bf16": True})]
)
def test_a_run_that_goes_on_keeps_its_precision_on_a_gpu_that_has_it(monkeypatch, began_in, chosen):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    kept = precision.with_precision({}, cpu=False, model_type="bert", began_in=began_in)
    assert kept == {**chosen, "tf32": True}


@pytest.mark.parametrize("faster", [True, False])
def test_a_run_that_goes_on_keeps_its_precision_on_a_cpu_that_has_it(monkeypatch, faster):
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: faster)
    for began_in, bf16 in (("bf16", True), ("float32", False), ("fp16", faster), (None, faster)):
        assert precision.with_precision({}, cpu=True, model_type="bert", began_in=began_in) == {"bf16": bf16}


def test_sharded_weights_are_not_trained_in_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    sharded = {"fsdp": "full_shard"}
    assert precision.with_precision(sharded, cpu=False, model_type="bert") == sharded


def test_measuring_a_cpu_leaves_the_number_of_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    precision.cpu_gains_from_bf16.cache_clear()
    try:
        precision.cpu_gains_from_bf16()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
        precision.cpu_gains_from_bf16.cache_clear()


@pytest.mark.parametrize("arguments", [{}, {"fp16": False}])
@pytest.mark.parametrize(("cpu", "capability"), [(True, (0, 0)), (False, (7, 0)), (False, (9, 0))])
def test_an_encoder_that_fails_in_half_precision_gets_float32(monkeypatch, arguments, cpu, capability):
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: capability >= (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    chosen = precision.with_precision(arguments, cpu=cpu, model_type="deberta")
    assert not chosen["bf16"]
    assert not chosen.get("fp16")
    assert chosen.get("tf32", False) == (capability >= (8, 0))
    device = torch.device("cpu" if cpu else "cuda")
    assert precision.fastest(device, model_type="deberta", training=arguments) == "float32"


@pytest.mark.parametrize(
    ("capability", "training", "chosen"),
    [
        ((7, 0), {}, "fp16"),
        ((7, 0), {"fp16": False}, "float32"),
        ((7, 0), {"bf16": False}, "float32"),
        ((9, 0), {"fp16": False}, "bf16"),
        ((9, 0), {"bf16": False}, "float32"),
        ((9, 0), {"fp16": True}, "bf16"),
    ],
)
def test_nothing_is_predicted_in_a_precision_that_the_study_rules_out(monkeypatch, capability, training, chosen):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: capability >= (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert precision.fastest(torch.device("cuda"), model_type="bert", training=training) == chosen


@pytest.mark.parametrize("kind", ["bert", "deberta", "deberta-v2"])
def test_an_encoder_runs_in_half_precision_if_it_is_said_to(kind: str) -> None:
    small = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]} if kind != "bert" else {}
    encoder = AutoModel.from_config(AutoConfig.for_model(kind, **small, **relative, intermediate_size=8))
    ids = torch.ones(1, 4, dtype=torch.int64)
    with precision.autocast(ids.device, "bf16"):
        try:
            runs = encoder(input_ids=ids).last_hidden_state.isfinite().all().item()
        except RuntimeError:
            runs = False
    assert precision.runs_in_half_precision(kind) == runs


@pytest.mark.parametrize("name", ["bf16", "fp16", "float32"])
def test_predictions_run_in_the_precision_of_training(tmp_path: Path, name: str) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=name == "bf16", fp16=name == "fp16")
    assert precision.name_of(args) == name
    with precision.autocast(args.device, name):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
