"""What ends a run, and leaves nothing half-written or ruined."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_runs import Tune

from tutti.data.encode import EncodedPart
from tutti.errors import BackboneError, StorageError, TrialError
from tutti.training import fine_tune
from tutti.training.loop.trainer import MultiTaskTrainer


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"reinit_layers": 3}, "reinit_layers must be at most 2"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "min_lr or min_lr_rate should be set"),
        (
            {"optim": "apollo_adamw", "optim_target_modules": "attn", "layer_lr_decay": 0.9},
            "fit the machine|one setting",
        ),
    ],
)
def test_what_the_model_or_the_optimizer_cannot_do_is_a_trial_error(tune, tmp_path, training, words):
    with pytest.raises(TrialError, match=words):
        tune(tmp_path, **training)


def test_a_loss_that_is_not_finite_ends_the_trial_naming_step_and_parameters(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match=r"loss at step [23] must be a finite number.*learning_rate=1e\+30"):
        tune(tmp_path, learning_rate=1e30, optim="sgd", warmup_steps=0)


@pytest.mark.parametrize(("logging_steps", "last"), [(100, 12), (4, 4)])
def test_where_steps_are_not_waited_for_the_first_bad_one_is_named(tune, tmp_path, monkeypatch, logging_steps, last):
    taken: list[int] = []
    after_step = MultiTaskTrainer.after_step
    monkeypatch.setattr(MultiTaskTrainer, "_checks_each_step", False)
    monkeypatch.setattr(
        MultiTaskTrainer, "after_step", lambda self: [taken.append(self.state.global_step + 1), after_step(self)][1]
    )
    with pytest.raises(TrialError, match=r"loss at step [23] must be a finite number.*learning_rate=1e\+30"):
        tune(tmp_path, learning_rate=1e30, optim="sgd", warmup_steps=0, logging_steps=logging_steps)
    assert taken[-1] == last
    assert not (tmp_path / "best").exists()
    assert not list((tmp_path / "resume").glob("*"))


def test_weights_that_the_last_step_ruined_end_the_trial_before_they_are_kept(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match=r"predicts of the task .+ after step 1 must be a finite number.*rate=1e\+30"):
        tune(tmp_path, learning_rate=1e30, optim="sgd", warmup_steps=0, max_steps=1)
    assert not (tmp_path / "best").exists()


def test_a_prediction_of_a_row_to_predict_that_is_not_finite_ends_the_trial_alone(tune, tmp_path, monkeypatch):
    """Rows that no evaluation has seen: their predictions could not be saved, whichever run tried it."""
    module = import_module("tutti.training.loop.evaluate")
    predict = module.predict

    def overflows(model: Any, part: EncodedPart, **options: Any) -> np.ndarray:
        outputs = predict(model, part, **options)
        if part.labels is None:
            outputs[0] = np.nan
        return outputs

    monkeypatch.setattr(module, "predict", overflows)
    with pytest.raises(TrialError, match=r"predicts of the test rows of the task .+ must be a finite number.*learni"):
        tune(tmp_path, learning_rate=1e-3)


def test_a_cpu_trains_also_where_the_default_of_use_cpu_is_written_out(tune: Tune, tmp_path: Path) -> None:
    _, reports = tune(tmp_path, use_cpu=False, max_steps=2)
    assert reports[-1].done


def test_fp16_without_a_gpu_is_a_trial_error(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="set bf16 instead"):
        tune(tmp_path, fp16=True, use_cpu=True)


def test_an_optimizer_whose_library_is_missing_is_a_trial_error(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="fit the machine that trains"):
        tune(tmp_path, optim="galore_adamw", optim_target_modules="attn")


def test_a_backbone_without_tokenizer_is_a_backbone_error(backbone, tmp_path, tasks, parts):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((backbone / name).read_bytes())
    with pytest.raises(BackboneError, match="tokenizer"):
        fine_tune(
            backbone=str(tmp_path),
            tasks=tasks,
            parts=parts,
            training={},
            folder=tmp_path / "t",
            on_epoch=lambda _: None,
        )


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limits the size of files, as on a full disk; lifted before pytest writes its log."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [5_000, 60_000, 150_000])
def test_a_file_that_cannot_be_written_is_a_storage_error_and_leaves_nothing_half_written(tune, tmp_path, size):
    with largest_file(size), pytest.raises(StorageError, match="must be written whole"):
        tune(tmp_path)
    left = [path.relative_to(tmp_path).parts for path in tmp_path.rglob("*") if path.is_dir()]
    assert all(not part.startswith(".") for parts in left for part in parts)
