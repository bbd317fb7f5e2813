"""``tutti.pretrain`` and its command, on one file of options."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from bad_input_run import run
from word_backbone import save_bert, save_tokenizer

import tutti
from tutti.errors import ConfigError
from tutti.files import sha256_of

WORDS = [f"w{each}" for each in range(59)]


@pytest.fixture
def file(tmp_path) -> Path:
    save_bert(tmp_path / "bert")
    save_tokenizer(tmp_path / "bert", [*WORDS, "[MASK]"], mask_token="[MASK]")
    lines = [" ".join(WORDS[(row * step) % 59] for step in range(1, 9)) for row in range(1, 60)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    (tmp_path / "pretraining.yaml").write_text(
        "backbone: bert\ntexts: texts.txt\nout: file\nepochs: 2\nbatch_size: 4\nmax_length: 16\nprocesses: 1\n"
    )
    return tmp_path / "pretraining.yaml"


def test_the_command_and_the_function_pretrain_alike_of_one_file(file, tmp_path, capsys):
    run(tmp_path, "backbone pretrain pretraining.yaml --out command --epochs 1", code=0)
    capsys.readouterr()
    made = tutti.pretrain(file, epochs=1, quiet=True)
    assert capsys.readouterr().out == ""
    assert made.path == tmp_path / "file"
    assert made.documents == 59
    ours, theirs = (sha256_of(tmp_path / name / "model.safetensors") for name in ("file", "command"))
    assert ours == theirs


def test_without_a_file_everything_is_given_by_name_and_a_wrong_name_is_corrected(file, tmp_path):
    with pytest.raises(ConfigError, match=r"tutti\.pretrain: lerning_rate must be a known key; .*'learning_rate'"):
        tutti.pretrain(texts=tmp_path / "texts.txt", backbone=tmp_path / "bert", out=tmp_path / "made", lerning_rate=1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.ray)])
def test_a_command_killed_within_an_epoch_ends_bit_equal_when_it_is_run_again(file, tmp_path, tutti_command, workers):
    options = ["--epochs", 12, "--save-steps", 4, "--log-steps", 1, "--workers", workers, "--gpus-per-worker", 0]

    def start(out: str):
        return tutti_command("backbone", "pretrain", file, "--out", tmp_path / out, *options)

    whole = start("whole")
    assert whole.wait() == 0, whole.output
    cut = start("cut")
    # Neither this step nor that of the state before it, 48, is at the end of an epoch.
    cut.wait_for(lambda: "step 49 of" in cut.output, what="a step within an epoch")
    os.kill(cut.process.pid, signal.SIGKILL)
    cut.kill()  # what Ray it has
    assert not (tmp_path / "cut").exists()
    again = start("cut")
    assert again.wait() == 0, again.output
    assert "step 1 of" not in again.output
    hashes = [sha256_of(tmp_path / name / "model.safetensors") for name in ("whole", "cut")]
    assert hashes[0] == hashes[1]
