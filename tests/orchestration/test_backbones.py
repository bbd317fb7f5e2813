"""A study of an encoder and a decoder: each trial trains, predicts and reads texts with its own backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tiny_study
from word_backbone import save_decoder

from tutti.bank.bank import Bank
from tutti.config.backbones import by_backbone
from tutti.config.folder import StudyFolder
from tutti.config.load import load_study
from tutti.data.encode import encode_rows, load_tokenizer, swapped
from tutti.errors import ConfigError, StudyError
from tutti.orchestration.after.inference import Predictor
from tutti.orchestration.before.abilities import abilities_of, check_backbone
from tutti.orchestration.before.kept_backbone import keep_backbone
from tutti.orchestration.before.rows import encode_study, prepare_rows
from tutti.orchestration.worker.build import fine_tune_once
from tutti.orchestration.worker.trial_listener import TrialListener
from tutti.records import TextLimit
from tutti.training import check_training


def load(folder: Path, data: Path, *, decoder: str = "decoder", rank_of: str = "decoder") -> Any:
    """A study whose search space has a folder beside the study file, and a key of trials with it."""
    bert = str(data / "backbone")
    space = {
        "backbone": {"type": "categorical", "choices": [decoder, bert]},
        "lora_r": {"type": "categorical", "choices": [2, 4], "when": {"backbone": rank_of}},
        "adapter": {"type": "categorical", "choices": ["lora"], "when": {"backbone": decoder}},
        "pooling": {"type": "categorical", "choices": ["cls"], "when": {"backbone": bert}},
    }
    search = {"trials": 2, "scheduler": "none", "enqueue": [{"backbone": decoder}]}
    file = tiny_study.write_study(folder, data, search_space=space, search=search, training__swap=True).file
    document = json.loads(file.read_text())
    document.pop("backbone")
    file.write_text(json.dumps(document))
    return load_study(file, check_training=check_training)


def test_each_trial_trains_predicts_and_reads_texts_with_the_backbone_that_it_drew(
    tiny_data: Path, tmp_path: Path
) -> None:
    save_decoder(tmp_path / "decoder", "qwen2", pad_token=None)
    study, folder = load(tmp_path, tiny_data), StudyFolder(tmp_path / "studies" / "tiny")
    decoder, bert = by_backbone(study)
    assert (decoder, bert) == (str(tmp_path / "decoder"), str(tiny_data / "backbone"))
    assert study.backbone == study.search.enqueue[0]["backbone"] == decoder
    prepared = prepare_rows(study, folder)
    keep_backbone(study, folder)
    for backbone, alone in by_backbone(study).items():
        abilities = abilities_of(backbone)
        check_backbone(alone, abilities, begun=False)
        encode_study(alone, folder, prepared, abilities)
    drawn = [{"backbone": decoder, "lora_r": 2, "adapter": "lora"}, {"backbone": bert, "pooling": "cls"}]
    for number, parameters in enumerate(drawn):
        options: dict[str, Any] = {"listener": TrialListener(), "main": True, "smaller_batches": False}
        fine_tune_once(study, folder, key=f"t{number}", number=number, parameters=parameters, **options)
    best = {number: folder.trial(f"t{number}").best for number in range(2)}
    made = [json.loads((place / "tutti.json").read_text()) for place in best.values()]
    assert [(each["heads"]["pooling"], bool(each["adapter"]), each["swap"]) for each in made] == [
        ("last", True, True),
        ("cls", False, True),
    ]
    worker, limit = Predictor(best, threads=1), TextLimit(16, swap=True)
    worker.load({})
    rows = [line.split("\t") for line in (tiny_data / "same_test.tsv").read_text().splitlines()]
    texts = pa.table({"text": [row[1] for row in rows], "text_b": [row[2] for row in rows]})
    for number, place in best.items():
        tokenizer = load_tokenizer(str(place))
        orders = [encode_rows(order, tokenizer=tokenizer, limit=limit) for order in (texts, swapped(texts))]
        outputs = worker.predict(number, "same", orders[0], tokenizer.pad_token_id, "float32", orders[1])
        banked = Bank(folder.bank).predictions(f"t{number}", "same", "test").outputs
        np.testing.assert_allclose(outputs, banked, rtol=0, atol=1e-2)  # the trial may have had bf16
    save_decoder(tmp_path / "decoder", "qwen2", words=50)
    with pytest.raises(StudyError, match=r"got another decoder/tokenizer\.json"):
        keep_backbone(study, folder)


def test_a_backbone_that_is_not_there_and_a_condition_on_one_that_is_not_a_choice_are_named(
    tiny_data: Path, tmp_path: Path
) -> None:
    save_decoder(tmp_path / "decoder")
    with pytest.raises(ConfigError, match=r"search_space\.backbone\.choices\.0 must be an existing folder") as caught:
        load(tmp_path, tiny_data, decoder="./decodr", rank_of="./decodr")
    assert "did you mean 'decoder'" in str(caught.value)
    with pytest.raises(ConfigError, match=r"search_space\.lora_r\.when\.backbone must be of the choices of backbone"):
        load(tmp_path, tiny_data, rank_of="decodr")
