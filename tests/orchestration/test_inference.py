"""What runs on the workers that predict, and how work is shared between them."""

from __future__ import annotations

import re
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from saved_models import save_model
from word_backbone import save_deberta, save_tokenizer

from tutti.config.folder import StudyFolder
from tutti.config.study import Resources
from tutti.data.encode import encode_rows, load_tokenizer
from tutti.errors import BackboneError, Fault, StudyError, TrialError, TrialMemoryError
from tutti.modeling.checkpoint import CheckpointMetadata, load_checkpoint, prune_checkpoint
from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.orchestration.after.encodings import Checkpoint
from tutti.orchestration.after.inference import Predictor, _Queue, slot_size, spread
from tutti.orchestration.after.weights import weights_of
from tutti.orchestration.worker.cpus import private_cpus
from tutti.records import TextLimit
from tutti.tasks.task import Task
from tutti.training.machine import precision

MOOD = Task("mood", ("calm", "glad", "sad"), pair=False, metric="accuracy", submission="csv")
LIKE = Task("like", (), pair=True, metric="pearson", submission="csv")


@pytest.fixture
def save(tiny_data: Path, tmp_path: Path) -> Callable[..., Path]:
    """Saves a checkpoint of random weights in the study's folder."""

    def saved(key: str, *, seed: int = 0, spoilt: bool = False, backbone: Path = tiny_data / "backbone") -> Path:
        torch.manual_seed(seed)
        model = MultiTaskModel(encoder=load_encoder(str(backbone)), tasks=(MOOD, LIKE), heads=HeadOptions())
        model.head("like").fit_labels(torch.tensor([1.0, 5.0]), torch.ones(2))
        if spoilt:
            model.head("mood").linear.bias.data[0] = torch.nan
        return save_model(StudyFolder(tmp_path).trial(key).best, model, backbone, key=key, limit=TextLimit(12))

    return saved


def encoded(folder: Path, texts: list[str], second: list[str] | None = None) -> pa.Table:
    table = pa.table({"text": texts} | ({"text_b": second} if second else {}))
    return encode_rows(table, tokenizer=load_tokenizer(str(folder)), limit=TextLimit(12))


@pytest.mark.parametrize("checkpoints", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 9])
def test_checkpoints_are_spread_over_workers_with_few_copies(checkpoints: int, workers: int) -> None:
    ranges = spread(checkpoints, workers)
    assert set().union(*ranges) == set(range(checkpoints))
    assert len(ranges) == workers
    assert min(map(len, ranges)) >= 1
    assert sum(map(len, ranges)) <= checkpoints + workers - 1


def test_a_worker_predicts_rows_in_their_order_classes_and_values_alike(save: Callable[..., Path]) -> None:
    folders = {3: save("a"), 5: save("b", seed=1)}
    worker = Predictor(folders, threads=1)
    assert worker.load({}) in ("bf16", "float32")
    texts = ["w1 w2 w3 w4 w5 w6 w7", "w1", "", "w9 w8 w7"]
    rows = encoded(folders[3], texts)
    predictions = {number: worker.predict(number, "mood", rows, 0, "float32") for number in folders}
    assert predictions[3].shape == (4, 3)
    assert not np.allclose(predictions[3], predictions[5])
    for row, text in enumerate(texts):
        alone = worker.predict(3, "mood", encoded(folders[3], [text]), 0, "float32")
        np.testing.assert_allclose(predictions[3][row], alone[0], atol=1e-6)
    values = worker.predict(3, "like", encoded(folders[3], texts, texts[::-1]), 0, "float32")
    assert values.shape == (4,)
    assert 1 < values.mean() < 5  # in the scale of the labels


@pytest.mark.parametrize("checkpoints", [["bert"], ["deberta"], ["bert", "deberta"]])
def test_a_worker_predicts_in_half_precision_only_what_runs_in_it(save, tiny_data, tmp_path, monkeypatch, checkpoints):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: True)
    shutil.copytree(tiny_data / "backbone", tmp_path / "deberta")
    save_deberta(tmp_path / "deberta")
    folders = {"bert": tiny_data / "backbone", "deberta": tmp_path / "deberta"}
    worker = Predictor({number: save(key, backbone=folders[key]) for number, key in enumerate(checkpoints)}, threads=1)
    assert worker.load({"bf16": False}) == "float32"
    chosen = worker.load({})
    assert chosen == ("bf16" if checkpoints == ["bert"] else "float32")
    for number, key in enumerate(checkpoints):
        assert worker.predict(number, "mood", encoded(folders[key], ["w1 w2"]), 0, chosen).shape == (1, 3)


def test_a_new_row_with_a_token_that_a_checkpoint_lacks_is_told_with_the_token(save, tiny_data, tmp_path):
    backbone = shutil.copytree(tiny_data / "backbone", tmp_path / "backbone")
    save_tokenizer(backbone, [*(f"w{number}" for number in range(60)), "zebra"])
    folder = save("a", backbone=backbone)
    worker = Predictor({0: folder}, threads=1)
    worker.predict(0, "mood", encoded(folder, ["w1"]), 0, "float32")
    with pytest.raises(
        BackboneError, match=r"give tokens below 64, .*; got 64 \('zebra'\); take the rows with it out, or"
    ):
        worker.predict(0, "mood", encoded(folder, ["w1", "zebra"]), 0, "float32")


def test_what_is_not_finite_is_no_prediction(save: Callable[..., Path]) -> None:
    folder = save("a", spoilt=True)
    message = r"what .*a/best predicts must be finite; got NaN or infinity; take the trial out of the recipe"
    with pytest.raises(TrialError, match=message):
        Predictor({0: folder}, threads=1).predict(0, "mood", encoded(folder, ["w1"]), 0, "float32")


def test_what_is_not_finite_in_half_precision_is_predicted_in_float32(save, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = save("a")
    worker, rows = Predictor({0: folder}, threads=1), encoded(folder, ["w1 w2", "w3"])
    expected = worker.predict(0, "mood", rows, 0, "float32")
    forward = MultiTaskModel.forward

    def overflowing(self: MultiTaskModel, *inputs: Any, **named: Any) -> torch.Tensor:
        return forward(self, *inputs, **named) * (torch.nan if torch.is_autocast_enabled("cpu") else 1)

    monkeypatch.setattr(MultiTaskModel, "forward", overflowing)
    np.testing.assert_array_equal(worker.predict(0, "mood", rows, 0, "bf16"), expected)


def test_rows_that_do_not_fit_into_memory_go_in_smaller_batches(save, monkeypatch):
    folder = save("a")
    worker, rows = Predictor({0: folder}, threads=1), encoded(folder, [f"w{row}" for row in range(50)])
    expected = worker.predict(0, "mood", rows, 0, "float32")
    forward, seen = MultiTaskModel.forward, []

    def small(self: MultiTaskModel, task: str, input_ids: torch.Tensor, *rest: torch.Tensor, **more: torch.Tensor):
        seen.append(input_ids.numel())
        if input_ids.numel() > 40:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
        return forward(self, task, input_ids, *rest, **more)

    monkeypatch.setattr(MultiTaskModel, "forward", small)
    np.testing.assert_allclose(worker.predict(0, "mood", rows, 0, "float32"), expected, atol=1e-6)
    assert max(seen[-3:]) <= 40


@pytest.mark.parametrize("wrapped", [False, True])
def test_checkpoints_that_memory_does_not_hold_together_take_turns(save, monkeypatch, wrapped):
    folders = {number: save(key, seed=number) for number, key in enumerate("abc")}
    rows = encoded(folders[0], ["w1 w2"])
    expected = [Predictor({0: folder}, threads=1).predict(0, "mood", rows, 0, "float32") for folder in folders.values()]
    loaded = weakref.WeakSet[MultiTaskModel]()

    def load(folder: Path, **options: Any) -> tuple[MultiTaskModel, CheckpointMetadata]:
        if len(loaded) == 2:
            full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB")
            if wrapped:
                raise BackboneError(Fault("the backbone", "load", str(full), "correct it")) from full
            raise full
        model, metadata = load_checkpoint(folder, **options)
        loaded.add(model)
        return model, metadata

    monkeypatch.setattr("tutti.modeling.checkpoint.load_checkpoint", load)
    worker = Predictor(folders, threads=1)
    worker.load({})
    for number in (0, 2, 1, 0):
        np.testing.assert_array_equal(worker.predict(number, "mood", rows, 0, "float32"), expected[number])


def test_a_checkpoint_that_needs_all_memory_has_it_and_one_that_needs_more_says_so(save, monkeypatch):
    worker = Predictor({0: save("a"), 1: save("b")}, threads=1)
    rows, forward, held = encoded(save("a"), ["w1 w2"]), MultiTaskModel.forward, 1
    worker.load({})

    def small(self: MultiTaskModel, *inputs: Any, **named: Any) -> torch.Tensor:
        if len(worker._models) > held:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB")
        return forward(self, *inputs, **named)

    monkeypatch.setattr(MultiTaskModel, "forward", small)
    assert worker.predict(0, "mood", rows, 0, "float32").shape == (1, 3)
    held = 0
    message = r"a/best must fit into a worker's memory .*; got CUDA out of memory.*; predict where workers have more"
    with pytest.raises(TrialMemoryError, match=message):
        worker.predict(0, "mood", rows, 0, "float32")


def test_a_trial_without_weights_says_why_and_what_to_do(save: Callable[..., Path], tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    saved = save("a")
    assert weights_of(folder, ["a"], folds=None, tasks=[MOOD, LIKE]) == {"a": [saved]}
    folds = [folder.trial("f").fold(fold).best for fold in range(2)]
    for place in folds:
        shutil.copytree(saved, place)
    assert weights_of(folder, ["f"], folds=2, tasks=[MOOD]) == {"f": folds}
    prune_checkpoint(folder.trial("a").best)
    with pytest.raises(StudyError) as caught:
        weights_of(folder, ["a", "f", "b"], folds=None, tasks=[MOOD])
    pruned, never, _ = map(str, caught.value.faults)
    assert re.match(r"trial a must have weights.*pruned.*a smaller `members: {top: }`", pruned)
    assert re.match(r"trial f must have weights.*got none", never)
    saved = save("c")
    same = replace(MOOD, metric="macro_f1", submission="glue")  # on which no prediction depends
    assert weights_of(folder, ["c"], folds=None, tasks=[same]) == {"c": [saved]}
    other = replace(MOOD, names=("a", "b"))
    message = r"with one text and 2 classes \(a, b\); got mood with one text and 3 classes \("
    with pytest.raises(StudyError, match=message):
        weights_of(folder, ["c"], folds=None, tasks=[other])


def test_a_shard_is_read_only_once_it_is_needed(save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "put", lambda value: value)  # what is in flight is looked at, not sent
    folder, read = save("a"), []

    def shards() -> Iterator[tuple[int, pd.DataFrame]]:
        for number in range(1000):
            read.append(number)
            yield number, pd.DataFrame({"id": ["0"], "text": ["w1 w2"]})

    checkpoints = [Checkpoint(folder, TextLimit(length)) for length in (8, 8, 4)]
    queue = _Queue(shards(), checkpoints, spread(3, 2), Task("mood", ("a", "b"), False, "macro_f1", "csv"))
    jobs: list[list[tuple[int, int]]] = [[], []]
    for worker in (0, 1, 0, 1, 0, 1):
        shard, model = queue.take(worker)
        jobs[worker].append((shard.number, model))
    # What only one can do comes first; what both can do goes to who is free.
    assert jobs == [[(0, 0), (0, 1), (1, 0)], [(0, 2), (1, 2), (1, 1)]]
    assert read == [0, 1]
    keys = queue.encodings.keys
    assert set(shard.encoded) == set(keys)
    assert keys[0] == keys[1] != keys[2]
    while queue.take(0):  # the other one has stopped
        pass
    assert len(read) < 12


def test_a_machine_that_works_alone_gives_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    resources = Resources(cpus_per_worker=10_000, gpus_per_worker=1)  # a cluster's, where the study ran
    assert slot_size(resources) == (private_cpus(), 0)
    monkeypatch.setenv("RAY_ADDRESS", "host:6379")
    assert slot_size(resources) == (10_000, 1)
