"""A trial trains only the embeddings of words that occur in its training rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_runs import newest_state

from tutti.training import FineTuned
from tutti.training.tricks import seen_words

WORDS = "embeddings.word_embeddings.weight"


@pytest.fixture
def tune(make_tune, steady_backbone, tmp_path):
    tune = make_tune(steady_backbone, num_train_epochs=1, per_device_train_batch_size=8, learning_rate=3e-3, bf16=False)

    def run(name: str, **training) -> tuple[FineTuned, Path]:
        return tune(tmp_path / name, **training)[0], tmp_path / name

    return run


@pytest.fixture
def unseen(parts) -> list[int]:
    """Rows of the table of 128 that neither training rows nor padding use."""
    rows = [row for part in parts.values() for row in part["train"].encoded["input_ids"]]
    return sorted(set(range(128)) - {0}.union(*rows))


@pytest.mark.parametrize(
    "tricks",
    [
        {},
        {"ema_decay": 0.9, "layer_lr_decay": 0.8, "max_grad_norm": 0.1},
        {"adversarial": "fgm", "rdrop_alpha": 1.0},
        {"stages": [{}, {"learning_rate": 1e-3}]},
    ],
    ids=lambda tricks: " ".join(tricks) or "plain",
)
def test_training_seen_words_alone_comes_to_the_same(tune, unseen, steady_backbone, tricks, monkeypatch):
    seen_run, folder = tune("seen", **tricks)
    monkeypatch.setattr(seen_words, "train_seen_words", lambda *_: None)
    expected, other = tune("whole", **tricks)
    assert seen_run.checkpoint.parameters == expected.checkpoint.parameters
    for name in ("model.safetensors", "heads.safetensors"):
        saved = load_file(folder / "best" / name)
        torch.testing.assert_close(saved, load_file(other / "best" / name), rtol=1e-3, atol=1e-5)
    for task, predicted in seen_run.predictions.items():
        for part, predictions in predicted.items():
            expected_probabilities = expected.predictions[task][part].outputs
            assert predictions.outputs == pytest.approx(expected_probabilities, abs=1e-4)
    saved, before = (load_file(place / "model.safetensors")[WORDS] for place in (folder / "best", steady_backbone))
    assert torch.equal(saved[unseen], before[unseen])
    assert not torch.equal(saved, before)
    assert (len(before) - len(unseen) in _moments(folder), len(before) in _moments(folder)) == (True, False)
    assert len(before) in _moments(other)


def _moments(folder: Path) -> set[int]:
    """The numbers of rows of the matrices in the optimizer state."""
    state = torch.load(newest_state(folder) / "optimizer.pt", weights_only=True)["state"]
    return {len(moments["exp_avg"]) for moments in state.values() if moments["exp_avg"].ndim == 2}


def test_weight_decay_leaves_unseen_words_as_they_are(tune, unseen, steady_backbone):
    _, folder = tune("decayed", weight_decay=1.0, max_steps=2)
    saved, before = (load_file(place / "model.safetensors")[WORDS] for place in (folder / "best", steady_backbone))
    assert torch.equal(saved[unseen], before[unseen])


@pytest.mark.parametrize(
    "tricks", [{"adversarial": "awp"}, {"optim": "adafactor"}, {"freeze_encoder": True}, {"adapter": "lora"}]
)
def test_all_words_are_trained_where_a_matrix_counts_as_a_whole_and_none_where_it_is_frozen(tune, tricks, monkeypatch):
    calls = []
    monkeypatch.setattr(seen_words, "train_seen_words", lambda *args: calls.append(args))
    tune("plain", max_steps=1)
    assert len(calls) == 1
    tune("other", max_steps=1, **tricks)
    assert len(calls) == 1
