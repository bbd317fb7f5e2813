"""A model learns entities: by each head, in windows and packed, and predicts each unit whatever batch it is in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import Tune, assert_same_end

from tutti.config.study import StudyConfig, TaskConfig
from tutti.data.encode import EncodedPart, load_parts, take
from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared
from tutti.errors import ConfigError
from tutti.modeling.checkpoint import load_checkpoint
from tutti.orchestration.before.rows import _check_packs
from tutti.records import TextLimit
from tutti.tasks.build import task_specs
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.layouts.tags import piece_of
from tutti.tasks.metrics.answers import squad_scores
from tutti.tasks.scorer import Scorer
from tutti.training.predict import are_finite, predict

LEARN = {"num_train_epochs": 6, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "bf16": False}


def write_rows(path: Path, rows: int, *, seed: int, labelled: bool, longest: int = 14) -> str:
    """Random words; w1 and w2 are entities of a type each, with the w9s that follow them."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        words = rng.choice([1, 2, 9, 20, 21, 22], rng.integers(2, longest)).tolist()
        tags, before = [], "O"
        for word in words:
            kind = {1: "ONE", 2: "TWO"}.get(word)
            before = f"B-{kind}" if kind else before.replace("B-", "I-") if word == 9 else "O"
            tags.append(before)
        row = {"tokens": [f"w{word}" for word in words], **({"tags": tags} if labelled else {})}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("entities")
    files = {"train": (120, 0, True), "validation": (40, 1, True), "test": (15, 2, False)}
    paths = {
        part: write_rows(folder / f"{part}.jsonl", rows, seed=seed, labelled=labelled)
        for part, (rows, seed, labelled) in files.items()
    }
    config = TaskConfig(layout="tokens", **paths)
    return prepare(task_specs({"names": config}), validation=0.1, seed=0, folder=folder / "data")


Parts = Mapping[str, Mapping[str, EncodedPart]]


@pytest.fixture(scope="module")
def parts_of(
    prepared: Prepared, steady_backbone: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Parts]:
    cache = tmp_path_factory.mktemp("cache")
    return lambda length: load_parts(prepared, tokenizer=str(steady_backbone), limit=TextLimit(length), cache=cache)


@pytest.fixture(scope="module")
def tuned(
    make_tune: Callable[..., Tune], steady_backbone: Path, prepared: Prepared, parts_of: Any
) -> Callable[..., Any]:
    run = make_tune(steady_backbone, **LEARN)

    def tune(folder: Path, length: int = 32, **options: Any) -> Any:
        return run(folder, tasks=prepared.tasks, parts=parts_of(length), **options)

    return tune


@pytest.mark.parametrize(
    "training",
    [
        {"head_dropout_samples": 2, "rdrop_alpha": 0.5, "class_weights": "balanced"},
        {"word_pooling": "mean", "focal_gamma": 1.0, "adversarial": "fgm", "pooling_layers": 2},
        {"tag_head": "crf", "word_pooling": "last", "ema_decay": 0.8, "head_learning_rate": 0.02},
    ],
    ids=str,
)
def test_entities_are_learnt_and_the_checkpoint_says_the_same(tuned, prepared, parts_of, tmp_path, training):
    done, reports = tuned(tmp_path, **training)
    assert done.checkpoint.score == max(report.score for report in reports) > 0.8
    model, metadata = load_checkpoint(tmp_path / "best")
    assert metadata.tasks == prepared.tasks
    for name, part in parts_of(32)["names"].items():
        if name == "train":
            continue
        predictions = done.predictions["names"][name]
        outputs = predict(model, part, task="names", batch_size=3, device=torch.device("cpu"))
        np.testing.assert_allclose(predictions.outputs, outputs, atol=1e-5)
    validation = done.predictions["names"]["validation"]
    assert Scorer.of(prepared.tasks[0]).score(validation.labels, validation.outputs) == done.checkpoint.score


@pytest.mark.parametrize("batching", ["padded", "packed"])
def test_entities_that_overlap_are_learnt_and_the_checkpoint_says_the_same(
    make_tune, steady_backbone, tmp_path, batching
):
    rng, rows = np.random.default_rng(0), []
    for _ in range(160):
        words = rng.choice([1, 2, 9, 20, 21], rng.integers(2, 9)).tolist()
        tags = [["B-ONE"] * (word in (1, 9)) + ["B-TWO"] * (word in (2, 9)) for word in words]  # w9 is both
        rows.append(json.dumps({"tokens": [f"w{word}" for word in words], "tags": tags}))
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    config = TaskConfig(layout="tokens", train=str(tmp_path / "train.jsonl"), spans="overlapping")
    prepared = prepare(task_specs({"names": config}), validation=0.2, seed=0, folder=tmp_path / "data")
    parts = load_parts(prepared, tokenizer=str(steady_backbone), limit=TextLimit(32), cache=tmp_path / "cache")
    run = make_tune(steady_backbone, **LEARN)
    done, _ = run(tmp_path / "run", tasks=prepared.tasks, parts=parts, batching=batching, head_dropout_samples=2)
    assert done.checkpoint.score > 0.95
    model, _ = load_checkpoint(tmp_path / "run" / "best")
    outputs = predict(model, parts["names"]["validation"], task="names", batch_size=3, device=torch.device("cpu"))
    np.testing.assert_allclose(done.predictions["names"]["validation"].outputs, outputs, atol=1e-5)
    np.testing.assert_array_equal(np.isnan(outputs[..., 0]), parts["names"]["validation"].labels == -1)


def test_long_rows_are_read_in_windows_and_nothing_is_cut(tuned, parts_of, tmp_path):
    part = parts_of(8)["names"]["validation"]
    assert part.windows is not None
    done, _ = tuned(tmp_path, length=8, max_length=8)
    outputs = done.predictions["names"]["validation"].outputs
    assert np.array_equal(np.isnan(outputs[..., 0]), part.labels == -1)
    assert done.checkpoint.score > 0.8


def test_a_model_that_gives_no_numbers_is_not_taken_for_one_of_rows_without_words(tuned, parts_of, tmp_path):
    tuned(tmp_path, num_train_epochs=1)
    model, _ = load_checkpoint(tmp_path / "best")
    part = parts_of(32)["names"]["test"]
    torch.nn.init.constant_(model.head("names").linear.bias, float("nan"))
    outputs = predict(model, part, task="names", batch_size=4, device=torch.device("cpu"))
    assert not are_finite(outputs, KINDS["tokens"])


def test_packed_rows_with_tags_that_are_longer_than_max_length_are_refused(parts_of):
    task = {"layout": "tokens", "train": "rows.jsonl"}
    space = {"learning_rate": {"type": "uniform", "low": 0.1, "high": 0.2}}
    study = StudyConfig(
        study="s", backbone="b", tasks={"names": task}, training={"batching": "packed"}, search_space=space
    )
    _check_packs(study, parts_of(32)["names"]["train"], where="train")
    with pytest.raises(ConfigError, match=r"batching must be padded .* rows that are longer in train"):
        _check_packs(study, parts_of(8)["names"]["train"], where="train")


def test_packed_rows_are_learnt_and_predicted_as_padded_ones(tuned, parts_of, tmp_path):
    done = {}
    for batching in ("padded", "packed"):
        done[batching], _ = tuned(tmp_path / batching, batching=batching, num_train_epochs=4)
        assert done[batching].checkpoint.score > 0.6
    model, _ = load_checkpoint(tmp_path / "padded" / "best")
    part = parts_of(32)["names"]["test"]
    padded = predict(model, part, task="names", batch_size=4, device=torch.device("cpu"))
    few = predict(model, take(part, np.array([3, 1])), task="names", batch_size=4, device=torch.device("cpu"))
    np.testing.assert_allclose(few, padded[[3, 1]], atol=1e-5)


def test_what_is_marked_may_depend_on_a_text_beside_it(make_tune, steady_backbone, tmp_path):
    rng, rows = np.random.default_rng(0), []
    for _ in range(160):
        words = [f"w{word}" for word in rng.choice([1, 2, 20, 21, 22], 6)]
        asked = f"w{rng.integers(1, 3)}"
        tags = ["B-IT" if word == asked else "O" for word in words]
        rows.append(json.dumps({"tokens": words, "tags": tags, "asked": asked}))
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    config = TaskConfig(layout="tokens", train=str(tmp_path / "train.jsonl"), columns={"text_b": "asked"})
    prepared = prepare(task_specs({"names": config}), validation=0.2, seed=0, folder=tmp_path / "data")
    assert prepared.tasks[0].pair
    parts = load_parts(prepared, tokenizer=str(steady_backbone), limit=TextLimit(32), cache=tmp_path / "cache")
    run = make_tune(steady_backbone, **LEARN)
    done, _ = run(tmp_path / "run", tasks=prepared.tasks, parts=parts, num_train_epochs=12)
    assert done.checkpoint.score > 0.8  # without the text beside it a word is marked as often as not


def test_answers_are_scored_as_texts_against_all_that_are_right(make_tune, steady_backbone, tmp_path):
    rng, rows = np.random.default_rng(0), []
    for _ in range(80):
        words = [f"W{word}," for word in rng.choice([1, 2, 20, 21, 22], 6)]
        text, found = " ".join(words), next((place for place, word in enumerate(words) if word == "W1,"), None)
        right = [] if found is None else ["w1", " ".join(words[found : found + 2]).lower()]
        answers = {"text": right, "answer_start": [text.find("W1")] * len(right)}
        rows.append(json.dumps({"text": text.lower(), "label": answers}))
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    scores = {}
    for metric, other in (("squad_f1", "token_row_f1"), ("squad_exact_match", "entity_exact_match")):
        task = {"metric": metric, "report": [other], "spans": "one"}
        config = TaskConfig(layout="tokens", train=str(tmp_path / "train.jsonl"), **task)
        prepared = prepare(task_specs({"names": config}), validation=0.4, seed=0, folder=tmp_path / metric)
        parts = load_parts(prepared, tokenizer=str(steady_backbone), limit=TextLimit(32), cache=tmp_path / "cache")
        run = make_tune(steady_backbone, **LEARN)
        done, _ = run(tmp_path / f"run-{metric}", tasks=prepared.tasks, parts=parts, num_train_epochs=2)
        outputs, answers = done.predictions["names"]["validation"].outputs, parts["names"]["validation"].answers
        decision = load_checkpoint(tmp_path / f"run-{metric}" / "best")[1].decisions.get("names")
        kind, names = prepared.tasks[0].kind, prepared.tasks[0].names
        cells = kind.cells(kind.decide(outputs, None if decision is None else np.array(decision)), names)
        given = [piece_of(text, "piece", cell) for (text, _), cell in zip(answers, cells, strict=True)]
        scores[metric] = squad_scores(given, [right for _, right in answers])[metric == "squad_f1"]
        assert done.checkpoint.score == pytest.approx(scores[metric])
        assert {len(right) for _, right in answers} == {0, 2}
    assert scores["squad_f1"] > 0


def test_a_stopped_run_goes_on_bit_equal(tuned, tmp_path):
    options = {"tag_head": "crf", "head_dropout": 0.3, "num_train_epochs": 3}
    whole, _ = tuned(tmp_path / "whole", **options)

    with pytest.raises(InterruptedError):
        tuned(tmp_path / "cut", stop_after=1, **options)
    resumed, _ = tuned(tmp_path / "cut", **options)
    assert_same_end(whole, resumed, tmp_path / "whole", tmp_path / "cut")
