"""The variables that a launcher of distributed training leaves in a shell, a pod or an allocation."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tutti.cli import app
from tutti.launchers import forget_launcher

RANK = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}
SETTINGS = {
    "ACCELERATE_MIXED_PRECISION": "bf16",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    "ACCELERATE_USE_DEEPSPEED": "true",
    "OMPI_COMM_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "x",
}
SEES = """
import sys
from tutti.launchers import forget_launcher
forget_launcher()
from accelerate import Accelerator
from transformers import TrainingArguments
args = TrainingArguments(sys.argv[1], use_cpu=True)
accelerator = Accelerator(cpu=True)
print(args.world_size, args.process_index, accelerator.mixed_precision, accelerator.gradient_accumulation_steps)
"""


@pytest.fixture
def launched(monkeypatch):
    for name, value in {**RANK, **SETTINGS}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("launched")
def test_a_command_and_what_it_starts_are_no_rank_of_a_launcher(monkeypatch):
    monkeypatch.setattr(app, "app", lambda: None)
    app.run()
    assert not {*RANK, *SETTINGS} & os.environ.keys()


@pytest.mark.usefixtures("launched")
def test_one_of_several_workers_keeps_the_rank_that_ray_train_set(monkeypatch):
    forget_launcher(single=False)
    assert {name: os.environ.get(name) for name in RANK} == RANK
    assert not SETTINGS.keys() & os.environ.keys()


@pytest.mark.usefixtures("launched")
def test_accelerate_neither_waits_for_the_launcher_s_ranks_nor_takes_its_settings(tmp_path):
    seen = subprocess.run([sys.executable, "-c", SEES, tmp_path], capture_output=True, text=True, timeout=60)
    assert seen.stdout.split() == ["1", "0", "no", "1"], seen.stderr
