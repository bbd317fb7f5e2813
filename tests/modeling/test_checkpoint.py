from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from saved_models import save_model
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LongformerConfig,
    LongformerModel,
    pipeline,
)

from tutti.config.study import OwnMetric
from tutti.errors import StorageError
from tutti.modeling.checkpoint import load_checkpoint, read_metadata, tensor_faults
from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.records import TextLimit
from tutti.tasks.task import Task

HEADS = HeadOptions(pooling="attention", layers=2, dropout=0.2, dropout_samples=3)


@pytest.fixture
def model(backbone: Path, odd_tasks: tuple[Task, ...]) -> MultiTaskModel:
    return MultiTaskModel(encoder=load_encoder(str(backbone)), tasks=odd_tasks, heads=HEADS)


@pytest.fixture
def saved(tmp_path: Path, model: MultiTaskModel, backbone: Path, odd_tasks: tuple[Task, ...]) -> Path:
    return _save(tmp_path / "best", model, backbone, odd_tasks)


def _save(folder: Path, model: MultiTaskModel, backbone: Path, tasks: tuple[Task, ...]) -> Path:
    scores = {"news.v1": 0.4, "keys": 0.6}
    return save_model(folder, model, backbone, tasks=tasks, key="t0007", number=7, epoch=2, task_scores=scores)


def test_a_checkpoint_comes_back_as_it_was(saved: Path, model: MultiTaskModel, odd_tasks: tuple[Task, ...]) -> None:
    loaded, metadata = load_checkpoint(saved)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert not loaded.training
    assert metadata.tasks == odd_tasks
    assert (metadata.key, metadata.number, metadata.epoch, metadata.score) == ("t0007", 7, 2, 0.5)
    assert metadata.limit == TextLimit(16)
    assert loaded.head_options == metadata.heads == HEADS
    assert (metadata.adapter, metadata.base) == (None, None)


def test_a_metric_of_the_user_s_own_is_found_again_where_the_study_was_moved(
    tmp_path: Path, model: MultiTaskModel, backbone: Path, odd_tasks: tuple[Task, ...]
) -> None:
    metric = OwnMetric(
        file=tmp_path / "study/data/metrics/metric.py", function="share", needs="decisions", higher_is_better=True
    )
    tasks = tuple(replace(task, metric="share", own_metric=metric) for task in odd_tasks)
    saved = _save(tmp_path / "study/trials/t0007/best", model, backbone, tasks)
    assert read_metadata(saved).tasks == tasks
    assert str(tmp_path) not in (saved / "tutti.json").read_text()
    (tmp_path / "study").rename(tmp_path / "moved")
    for task in read_metadata(tmp_path / "moved/trials/t0007/best").tasks:
        assert task.own_metric == metric.model_copy(update={"file": tmp_path / "moved/data/metrics/metric.py"})


@pytest.mark.parametrize("global_attention", [True, False])
def test_a_longformer_predicts_with_the_attention_that_it_was_trained_with(
    tmp_path: Path, backbone: Path, odd_tasks: tuple[Task, ...], global_attention: bool
) -> None:
    small = {"vocab_size": 64, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = LongformerModel(LongformerConfig(**small, intermediate_size=8, attention_window=4, pad_token_id=1))
    trained = MultiTaskModel(
        encoder=encoder, tasks=odd_tasks, heads=HeadOptions(), global_attention=global_attention
    ).eval()
    _save(tmp_path / "best", trained, backbone, odd_tasks)
    task, ids = odd_tasks[0].name, torch.arange(2, 34).unsqueeze(0)
    loaded = load_checkpoint(tmp_path / "best")[0]
    torch.testing.assert_close(*(model(task, ids, torch.ones_like(ids)) for model in (loaded, trained)), rtol=0, atol=0)


def test_plain_transformers_loads_encoder_and_tokenizer(saved: Path, model: MultiTaskModel) -> None:
    encoder = AutoModel.from_pretrained(saved, add_pooling_layer=False)
    torch.testing.assert_close(encoder.state_dict(), model.encoder.state_dict(), rtol=0, atol=0)
    assert AutoTokenizer.from_pretrained(saved)("w1 w2")["input_ids"] == [2, 5, 6, 3]


def test_a_pipeline_of_transformers_refuses_a_checkpoint_since_it_has_no_head_for_it(saved: Path) -> None:
    with pytest.raises(ValueError, match="predict with `tutti predict STUDY --checkpoint`"):
        pipeline("text-classification", model=str(saved))("w1 w2")
    classifier = AutoModelForSequenceClassification.from_pretrained(saved, num_labels=3)  # to train one stays possible
    assert classifier.config.num_labels == 3


def test_the_metadata_hashes_every_other_file(saved: Path) -> None:
    files = json.loads((saved / "tutti.json").read_text())["files"]
    assert set(files) == {file.name for file in saved.iterdir()} - {"tutti.json"}
    assert {"config.json", "model.safetensors", "heads.safetensors"} <= set(files)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "heads.safetensors", "tokenizer.json"])
def test_a_changed_or_missing_file_is_named(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(StorageError, match=name):
        load_checkpoint(saved)
    (saved / name).unlink()
    with pytest.raises(StorageError, match=name):
        load_checkpoint(saved)


def test_a_checkpoint_of_another_version_is_said_to_be_one(saved: Path) -> None:
    content = json.loads((saved / "tutti.json").read_text())
    (saved / "tutti.json").write_text(json.dumps({**content, "format": 1, "more": {}}))
    with pytest.raises(StorageError, match="be of format 2; got 1; read it with the version of Tutti that wrote it"):
        load_checkpoint(saved)


def test_without_its_metadata_a_checkpoint_is_not_complete(saved: Path) -> None:
    (saved / "tutti.json").write_text("{")
    with pytest.raises(StorageError, match=r"tutti\.json"):
        load_checkpoint(saved)
    (saved / "tutti.json").unlink()
    with pytest.raises(StorageError, match=r"tutti\.json"):
        load_checkpoint(saved)


def test_a_disk_that_fills_while_a_tokenizer_is_written_is_told_as_full(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"must be written whole; got .*No space left on device"),
        tensor_faults(tmp_path),
    ):
        raise Exception("No space left on device (os error 28)")  # what tokenizers raises
    with pytest.raises(Exception, match="another") as other, tensor_faults(tmp_path):
        raise Exception("another")
    assert type(other.value) is Exception
