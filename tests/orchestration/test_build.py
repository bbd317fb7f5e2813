"""What a study checks and encodes before its first trial."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from word_backbone import save_tokenizer

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import BackboneError, StorageError, StudyError
from tutti.orchestration.before.abilities import abilities_of
from tutti.orchestration.before.kept_backbone import keep_backbone
from tutti.orchestration.before.rows import encode_study
from tutti.records import TextLimit


def study(**changes: Any) -> StudyConfig:
    tasks = {"a": {"layout": "competition", "train": "/x"}}
    return StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": tasks, **changes})


def test_a_study_does_not_go_on_with_another_backbone_in_the_same_folder(tmp_path: Path) -> None:
    backbone, folder = tmp_path / "model", StudyFolder(tmp_path / "s")
    backbone.mkdir()
    folder.data.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "README.md"):
        (backbone / name).write_text(name)
    own = study(backbone=str(backbone))
    keep_backbone(own, folder)
    (backbone / "README.md").write_text("more")
    keep_backbone(own, folder)
    keep_backbone(study(backbone="model"), folder)  # of this name on the hub
    (backbone / "model.safetensors").write_text("pretrained on")
    with pytest.raises(StudyError, match=r"when the study 's' began; got another model.safetensors; restore them"):
        keep_backbone(own, folder)
    (backbone / "model.safetensors").rename(backbone / "model-1.safetensors")
    with pytest.raises(StudyError, match=r"got a new model-1.safetensors"):
        keep_backbone(own, folder)
    folder.backbone_file.write_text("torn")
    with pytest.raises(StorageError, match=r"backbone.json must hold the hashes of the backbone's files; got"):
        keep_backbone(own, folder)


def test_a_study_does_not_go_on_with_another_tokenizer_unless_it_has_kept_none(tmp_path: Path) -> None:
    backbone, folder = tmp_path / "model", StudyFolder(tmp_path / "s")
    backbone.mkdir()
    folder.data.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt"):
        (backbone / name).write_text(name)
    own = study(backbone=str(backbone))
    keep_backbone(own, folder)
    kept = json.loads(folder.backbone_file.read_text())
    (backbone / "tokenizer.json").write_text("trained again")
    with pytest.raises(StudyError, match=r"hold the configuration, tokenizer and weights .* another tokenizer.json"):
        keep_backbone(own, folder)
    older = {name: kept[name] for name in ("config.json", "model.safetensors")}
    folder.backbone_file.write_text(json.dumps(older))
    keep_backbone(own, folder)


@pytest.mark.parametrize(
    ("entry", "lengths"),
    [
        ({"type": "categorical", "choices": [32, 16]}, [16, 32]),
        ({"type": "categorical", "choices": [32, 16], "when": {"pooling": "cls"}}, [16, 32, 64]),
        ({"type": "int", "low": 8, "high": 16}, [16]),
    ],
)
def test_texts_are_encoded_at_every_length_that_is_known(tmp_path, monkeypatch, entry, lengths):
    space = {"max_length": entry, "pooling": {"type": "categorical", "choices": ["cls", "mean"]}}
    encoded: list[int] = []

    def load_parts(*_: object, limit: TextLimit, **__: object) -> Any:
        encoded.append(limit.max_length)
        return {"mood": {part: SimpleNamespace(widths=np.array([4, 16, 32, 64])) for part in ("train", "test")}}

    monkeypatch.setattr("tutti.data.encode.load_parts", load_parts)
    own, takes_any = (
        study(training={"max_length": 64}, search_space=space),
        SimpleNamespace(tokens=None, token_types=None),
    )
    told = encode_study(own, StudyFolder(tmp_path), SimpleNamespace(tasks=()), takes_any)  # type: ignore[arg-type]
    assert encoded == lengths
    share = {16: 0.75, 32: 0.5, 64: 0.25}[lengths[-1]]
    assert told == ([TextLimit(lengths[-1])], {("mood", "max_length"): share} if entry["type"] == "categorical" else {})


def test_texts_are_encoded_in_every_way_that_a_trial_may_read_long_ones(tmp_path, monkeypatch):
    encoded: list[TextLimit] = []

    def load_parts(*_: object, limit: TextLimit, **__: object) -> Any:
        encoded.append(limit)
        part = SimpleNamespace(widths=np.array([4, 16, 64]), highest=lambda column: 0)
        return {"mood": {"train": part}}

    monkeypatch.setattr("tutti.data.encode.load_parts", load_parts)
    space = {
        "truncation": {"type": "categorical", "choices": ["longest_first", "head_tail", "windows"]},
        "stride": {"type": "categorical", "choices": [None, 2], "when": {"truncation": "windows"}},
    }
    own, takes_any = (
        study(training={"max_length": 16, "stride": 3}, search_space=space),
        SimpleNamespace(tokens=None, token_types=None),
    )
    told = encode_study(own, StudyFolder(tmp_path), SimpleNamespace(tasks=()), takes_any)  # type: ignore[arg-type]
    windows = [TextLimit(16, "windows", stride) for stride in (2, 3, 4)]  # the default is a quarter of the length
    assert encoded == [TextLimit(16, "head_tail"), TextLimit(16), *windows]
    assert told == (encoded, {("mood", "max_length"): 2 / 3})


SPECIAL = {f"{name}_token_id": 0 for name in ("pad", "cls", "sep", "bos", "eos")}
SMALL = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def save_encoder(folder: Path, kind: str, **options: Any) -> None:
    from transformers import AutoConfig, AutoModel

    AutoModel.from_config(AutoConfig.for_model(kind, **{**SMALL, "embedding_size": 8, **options})).save_pretrained(
        folder
    )
    save_tokenizer(folder, ["a", "b"])


@pytest.mark.parametrize(("kind", "can"), [("bert", True), ("albert", False)])
def test_a_backbone_says_whether_it_can_compute_its_activations_anew(tmp_path: Path, kind: str, can: bool) -> None:
    save_encoder(tmp_path, kind)
    assert abilities_of(str(tmp_path)).checkpoints_activations == can


@pytest.mark.parametrize(("kind", "has"), [("bert", True), ("albert", True), ("squeezebert", False)])
def test_a_backbone_says_whether_its_layers_are_linear(tmp_path: Path, kind: str, has: bool) -> None:
    save_encoder(tmp_path, kind)
    assert abilities_of(str(tmp_path)).linear_layers == has


@pytest.mark.parametrize(("kind", "does"), [("bert", True), ("deberta", False)])
def test_a_backbone_says_whether_it_runs_in_half_precision(tmp_path: Path, kind: str, does: bool) -> None:
    save_encoder(tmp_path, kind)
    assert abilities_of(str(tmp_path)).half_precision == does


@pytest.mark.parametrize(("kind", "has"), [("bert", True), ("canine", False)])
def test_a_backbone_says_whether_it_has_a_table_of_words(tmp_path: Path, kind: str, has: bool) -> None:
    save_encoder(tmp_path, kind, num_hidden_layers=4)
    assert abilities_of(str(tmp_path)).embeds_words == has


@pytest.mark.parametrize(("kind", "tokens", "types"), [("bert", 3, 2), ("modernbert", 3, None), ("canine", None, 16)])
def test_a_backbone_is_tried_on_the_tokens_and_token_types_it_has_embeddings_of(tmp_path, kind, tokens, types):
    save_encoder(tmp_path, kind, num_hidden_layers=4, vocab_size=3, **SPECIAL)  # too few for what it is tried on
    abilities = abilities_of(str(tmp_path))
    assert (abilities.tokens, abilities.token_types) == (tokens, types)


def test_a_backbone_says_how_many_of_its_layers_can_be_mixed(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert", num_hidden_layers=2)
    assert abilities_of(str(tmp_path)).layers == 2
    save_encoder(tmp_path, "canine", num_hidden_layers=4)  # the middle ones have one state for four characters
    assert abilities_of(str(tmp_path)).layers == 2
    save_encoder(tmp_path, "flaubert", emb_dim=8, n_layers=2, n_heads=2, layerdrop=0.2)
    assert abilities_of(str(tmp_path)).layers == 1


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("dpr", "compute a state of each token from the tokens alone"),
        ("clip_text_model", "be an encoder, in which the first token sees all others"),
    ],
)
def test_a_backbone_that_does_not_encode_texts_is_refused_before_any_trial(tmp_path, kind, complaint):
    save_encoder(tmp_path, kind)
    with pytest.raises(BackboneError, match=f"{complaint}.*type '{kind}'"):
        abilities_of(str(tmp_path))


def test_a_backbone_of_another_script_without_special_tokens_is_tried_too(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    save_encoder(tmp_path, "bert", num_hidden_layers=2)
    letters = Tokenizer(models.BPE(vocab={"[PAD]": 0, "好": 1}, merges=[]))
    PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="[PAD]").save_pretrained(tmp_path)
    assert abilities_of(str(tmp_path)).layers == 2


def test_a_study_that_has_begun_with_a_backbone_goes_on_with_it(tmp_path: Path) -> None:
    save_encoder(tmp_path, "clip_text_model")
    assert abilities_of(str(tmp_path), begun=True).layers is None  # not limited either


def test_an_encoder_with_fewer_states_than_tokens_is_refused_before_any_trial(tmp_path: Path) -> None:
    from transformers import FunnelBaseModel, FunnelConfig

    config = FunnelConfig(vocab_size=8, block_sizes=[1, 1], d_model=8, n_head=2, d_head=4, d_inner=8)
    FunnelBaseModel(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, ["a", "b"])
    with pytest.raises(BackboneError, match="give a text of 6 tokens 6 states"):
        abilities_of(str(tmp_path))
