"""One member as a plain model of transformers and as ONNX."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from kind_studies import study_with_weights

from tutti.errors import StudyError
from tutti.modeling.heads import HeadOptions
from tutti.records import TextLimit
from tutti.workflows.predict import FramePredictor, single_checkpoint

CLS = HeadOptions(pooling="cls")


def predicted(study, checkpoint, frame) -> pd.DataFrame:
    task = study.prepared.tasks[0]
    predictors = replace(single_checkpoint(study.stored, task, checkpoint), training={"bf16": False, "fp16": False})
    return FramePredictor(study.stored, task, predictors)(frame)


@pytest.mark.parametrize("kind", ["classes", "labels", "value", "values", "tokens"])
def test_pipelines_of_transformers_predict_as_tutti_does(tmp_path, kind):
    from transformers import pipeline

    study = study_with_weights(tmp_path, kind, heads=CLS)
    checkpoint = study.folder.trial("t0001").best
    done = study.export(tmp_path / "plain", checkpoint=checkpoint, form="transformers")
    assert done.speed.greatest < 1e-5
    frame = pd.read_csv(tmp_path / "test.csv", dtype=str)
    expected = predicted(study, checkpoint, frame)
    texts = frame["text"].tolist()
    if kind == "tokens":
        found = pipeline("token-classification", str(tmp_path / "plain"), aggregation_strategy="first")(texts)
        spans = [[(each["start"], each["end"], each["entity_group"]) for each in row] for row in found]
        ours = [[tuple(one[:3]) for one in json.loads(row)] for row in expected["entities"]]
        same = [one == other for one, other in zip(spans, ours, strict=True)]
        assert np.mean(same) > 0.8  # where the likeliest tags are no path of tags, Tutti takes the best path
        return
    found = pipeline("text-classification", str(tmp_path / "plain"), top_k=None)(texts)
    by_name = pd.DataFrame([{each["label"]: each["score"] for each in row} for row in found])
    if kind in ("value", "values"):
        names = study.prepared.tasks[0].names or ("value",)
        np.testing.assert_allclose(by_name[sorted(by_name)], expected[list(names)], atol=1e-5)
        return
    for name in by_name:
        np.testing.assert_allclose(by_name[name], expected[f"p_{name}"], atol=1e-5)
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert list(config["id2label"].values()) == list(study.prepared.tasks[0].names)
    assert config["problem_type"] == ("single" if kind == "classes" else "multi") + "_label_classification"


def test_candidates_are_a_multiple_choice_of_transformers(tmp_path):
    import torch
    from transformers import AutoModelForMultipleChoice, AutoTokenizer

    study = study_with_weights(tmp_path, "choice", heads=CLS)
    checkpoint = study.folder.trial("t0000").best
    study.export(tmp_path / "plain", checkpoint=checkpoint, form="transformers")
    frame = pd.read_csv(tmp_path / "test.csv", dtype=str, keep_default_na=False)
    expected = predicted(study, checkpoint, frame)
    model = AutoModelForMultipleChoice.from_pretrained(tmp_path / "plain")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    row = frame.iloc[0]
    own = [row[name] for name in ("one", "two", "three", "four") if row[name]]
    tokens = tokenizer([row["text"]] * len(own), own, padding=True, return_tensors="pt")
    with torch.no_grad():
        shares = model(**{name: each.unsqueeze(0) for name, each in tokens.items()}).logits.softmax(dim=1)[0]
    np.testing.assert_allclose(
        shares, expected.loc[0, [f"p_{name}" for name in "ABCD"[: len(own)]]].to_list(), atol=1e-5
    )


@pytest.mark.parametrize(
    ("heads", "limit", "reason"),
    [
        (HeadOptions(pooling="attention"), TextLimit(16), "the pooling attention"),
        (HeadOptions(pooling="cls", layers=2), TextLimit(16), "mixes the last 2 layers"),
        (CLS, TextLimit(16, truncation="windows"), "averages the windows"),
    ],
)
def test_a_head_that_no_class_of_transformers_has_is_refused_with_the_reason(tmp_path, heads, limit, reason):
    study = study_with_weights(tmp_path, "classes", heads=heads, limit=limit)
    with pytest.raises(StudyError, match=reason):
        study.export(tmp_path / "plain", checkpoint=study.folder.trial("t0000").best, form="transformers")
    assert not (tmp_path / "plain").exists()


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "electra", "deberta-v2", "albert", "mpnet"])
def test_dense_layers_of_other_architectures_return_what_they_are_given(architecture):
    import torch
    from transformers import AutoConfig, AutoModel

    from tutti.modeling.model import MultiTaskModel
    from tutti.modeling.plain import difference, plain_model
    from tutti.tasks.task import Task

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    own = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64} if architecture == "distilbert" else sizes
    config = AutoConfig.for_model(architecture, vocab_size=64, **own)
    task = Task("mood", ("a", "b", "c"), pair=False, metric="accuracy", submission="csv")
    model = MultiTaskModel(encoder=AutoModel.from_config(config), tasks=[task], heads=CLS).eval()
    ids = torch.randint(5, 60, (4, 9))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    assert difference(model, plain_model(model, TextLimit(16)), batch) < 1e-5
    if getattr(model.encoder, "pooler", None) is not None:
        own = MultiTaskModel(encoder=model.encoder, tasks=[task], heads=HeadOptions(pooling="pooler")).eval()
        assert difference(own, plain_model(own, TextLimit(16)), batch) < 1e-5


@pytest.mark.parametrize("kind", ["classes", "ordered", "labels", "values"])
def test_onnx_gives_the_outputs_of_torch(tmp_path, kind):
    pytest.importorskip("onnxruntime")
    study = study_with_weights(tmp_path, kind, heads=HeadOptions(pooling="attention"))
    done = study.export(tmp_path / "onnx", checkpoint=study.folder.trial("t0001").best, form="onnx")
    assert done.speed.greatest < 1e-5
    assert (tmp_path / "onnx" / "model.onnx").is_file()


def test_onnx_of_rows_with_several_inputs_is_refused(tmp_path):
    study = study_with_weights(tmp_path, "choice")
    with pytest.raises(StudyError, match="have one input for each row"):
        study.export(tmp_path / "onnx", checkpoint=study.folder.trial("t0000").best, form="onnx")
