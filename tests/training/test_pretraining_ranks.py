"""Two gloo workers pretrain as one does with twice the rows, and go on where they were cut off."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pretraining_rank
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from word_backbone import save_decoder

from tutti.config.pretraining import PretrainingSettings
from tutti.data.corpus import CorpusOptions
from tutti.training.machine import precision
from tutti.training.pretraining.run import TextFiles, encode_texts

pytestmark = pytest.mark.slow
# Adam divides a gradient by its size, and clipping hides it too: with these, twice the gradient is another step.
BY_SIZE = {"adam_epsilon": 0.1, "max_grad_norm": 0, "learning_rate": 1e-2}
SETTINGS = {"epochs": 2, "learning_rate": 1e-3, "accumulation": 2, "save_steps": 3, "log_steps": 1}


@pytest.fixture
def float32(monkeypatch):
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: False)


def in_two(folder: Path, runs: list[dict], *, name: str) -> list[dict]:
    """What rank 0 says of each run, of two processes that do them together; the last one may be cut off."""
    file = folder / name
    file.write_text(json.dumps({"texts": str(folder / "texts.txt"), "runs": runs}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, pretraining_rank.__file__, str(file)]
    ranks = [subprocess.Popen(command, env={**given, "RANK": str(rank)}) for rank in range(2)]
    codes = [rank.wait(timeout=240) for rank in ranks]
    assert codes[0] == 0
    assert codes[1] == 0 or "stop_at" in runs[-1]
    return json.loads(Path(f"{file}.0").read_text())


@pytest.fixture(scope="module")
def place(tmp_path_factory, steady_backbone) -> Path:
    """A folder with texts, an encoder and a decoder without dropout, and the runs of two ranks: one for each objective,
    and one that was cut off."""
    folder = tmp_path_factory.mktemp("pretraining")
    shutil.copytree(steady_backbone, folder / "bert")
    AutoTokenizer.from_pretrained(steady_backbone, mask_token="w59").save_pretrained(folder / "bert")
    save_decoder(folder / "llama")
    generator = np.random.default_rng(0)
    rows = [generator.integers(50, size=size) for size in generator.integers(3, 14, size=60)]
    (folder / "texts.txt").write_text("\n".join(" ".join(f"w{word}" for word in row) for row in rows))
    for backbone in ("bert", "llama"):
        texts = TextFiles((folder / "texts.txt",), CorpusOptions(max_length=16, packed=False), folder / "cache")
        settings = PretrainingSettings()
        encode_texts(texts, backbone=str(folder / backbone), out=folder / "out", settings=settings)
    runs = [
        run(folder, objective, name=f"{how} {objective}", fsdp=how == "sharded")
        for how in ("two", "sharded")
        for objective in ("masked", "electra", "causal")
    ]
    (folder / "ended.json").write_text(
        json.dumps(in_two(folder, [*runs, run(folder, "masked", name="cut", stop_at=5)], name="runs"))
    )
    shutil.copytree(folder / "cut.unfinished", folder / "cut too.unfinished")
    return folder


def run(folder: Path, objective: str, *, name: str, batch_size: int = 4, fsdp: bool = False, **more) -> dict:
    backbone = str(folder / ("llama" if objective == "causal" else "bert"))
    settings = {**SETTINGS, **(BY_SIZE if objective == "causal" else {}), "batch_size": batch_size, "fsdp": fsdp}
    return {"backbone": backbone, "objective": objective, "settings": settings, "out": str(folder / name), **more}


def alone(folder: Path, run: dict) -> dict:
    return pretraining_rank.pretrained(run, texts=str(folder / "texts.txt"))


def assert_as(one: Path, other: Path, *, tolerance: float) -> None:
    weights = [load_file(folder / "model.safetensors") for folder in (one, other)]
    torch.testing.assert_close(*weights, rtol=0, atol=tolerance)


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("objective", ["masked", "electra", "causal"])
def test_two_workers_pretrain_as_one_does_with_twice_the_rows(place, objective):
    number = ("masked", "electra", "causal").index(objective)
    two = json.loads((place / "ended.json").read_text())[number]
    one = pretraining_rank.pretrained(
        run(place, objective, name=f"one {objective}", batch_size=8), texts=str(place / "texts.txt")
    )
    assert two["measures"] == pytest.approx(one["measures"], abs=1e-5)
    assert two["steps"] == one["steps"]
    assert_as(place / f"one {objective}", place / f"two {objective}", tolerance=1e-5)


def test_two_workers_that_were_cut_off_end_bit_equal(place):
    (ended,) = in_two(place, [run(place, "masked", name="cut")], name="again")
    assert min(ended["steps"]) == 4
    assert_as(place / "cut", place / "two masked", tolerance=0)


@pytest.mark.usefixtures("float32")
def test_one_worker_goes_on_for_two_with_twice_the_rows(place):
    ended = pretraining_rank.pretrained(
        run(place, "masked", name="cut too", batch_size=8), texts=str(place / "texts.txt")
    )
    assert min(ended["steps"]) == 4
    assert_as(place / "cut too", place / "two masked", tolerance=1e-5)


@pytest.mark.parametrize("objective", ["masked", "electra", "causal"])
def test_workers_that_share_layers_out_pretrain_as_those_that_do_not(place, objective):
    ended = json.loads((place / "ended.json").read_text())
    number = ("masked", "electra", "causal").index(objective)
    whole, sharded = ended[number], ended[3 + number]
    assert sharded["measures"] == pytest.approx(whole["measures"], abs=1e-5)
    assert sharded["steps"] == whole["steps"]
    assert_as(place / f"sharded {objective}", place / f"two {objective}", tolerance=1e-5)


def test_workers_that_share_layers_out_and_were_cut_off_end_bit_equal(place):
    cut = run(place, "masked", name="sharded cut", fsdp=True)
    in_two(place, [{**cut, "stop_at": 5}], name="cut sharded")
    (ended,) = in_two(place, [cut], name="again sharded")
    assert min(ended["steps"]) == 4
    assert_as(place / "sharded cut", place / "sharded masked", tolerance=0)
