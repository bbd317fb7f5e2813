from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from saved_models import save_model
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertConfig, BertModel, pipeline

from tutti.config.training import TrainingOptions
from tutti.errors import BackboneError, StorageError, TrialError
from tutti.modeling import adapters
from tutti.modeling.adapters import Adapter, adapter_state
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.heads import HeadOptions
from tutti.modeling.merge import merged_model
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.tasks.task import Task

IDS = torch.tensor([[2, 5, 9, 12, 3], [2, 7, 3, 0, 0]])
MASK = (IDS > 0).long()
SMALL = {"vocab_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "max_position_embeddings": 40}
SMALL |= {"num_hidden_layers": 2, "hidden_size": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

needs_bitsandbytes = pytest.mark.skipif(not adapters.has_bitsandbytes(), reason="bitsandbytes is not installed")
BITS = [None, pytest.param(4, marks=needs_bitsandbytes), pytest.param(8, marks=needs_bitsandbytes)]


@pytest.fixture(scope="module")
def base(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT without dropout, wide enough for blocks of 64 weights, and with a pooler."""
    folder = tmp_path_factory.mktemp("base") / "bert"
    shutil.copytree(backbone, folder)
    torch.manual_seed(0)
    BertModel(BertConfig(**SMALL)).save_pretrained(folder)
    return folder


def _model(base: Path, tasks: tuple[Task, ...], adapter: Adapter | None = None) -> MultiTaskModel:
    """A model whose adapter, if it has one, has an effect, as after some training."""
    torch.manual_seed(1)
    model = MultiTaskModel(
        encoder=load_encoder(str(base), adapter=adapter), tasks=tasks, heads=HeadOptions(), adapter=adapter
    )
    for name, weight in adapter_state(model.encoder).items():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)
    return model


def _linear(encoder: nn.Module) -> dict[str, nn.Module]:
    """The encoder's linear layers, without the adapter's."""
    return {
        name: module
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Linear) and "lora_" not in name
    }


@pytest.mark.parametrize("bits", [None, pytest.param(4, marks=needs_bitsandbytes)])
@pytest.mark.parametrize("kind", ["bert", "electra", "albert", "mpnet", "xlm-roberta", "deberta-v2", "xlnet"])
def test_every_linear_layer_of_an_encoder_gets_an_adapter(kind: str, bits: int | None, tmp_path: Path) -> None:
    other = {"d_model": 64, "n_layer": 2, "n_head": 2, "d_inner": 128, "vocab_size": 64}
    config = AutoConfig.for_model(kind, **(other if kind == "xlnet" else SMALL))
    AutoModel.from_config(config).save_pretrained(tmp_path)
    names = set(_linear(load_encoder(str(tmp_path))))
    encoder = load_encoder(str(tmp_path), adapter=Adapter(rank=4, bits=bits))
    assert {name.removesuffix(".base_layer") for name in _linear(encoder)} == names
    assert {name.split(".lora_")[0] for name in adapter_state(encoder)} == names
    assert {type(module) is nn.Linear for module in _linear(encoder).values()} == {bits is None}


@pytest.mark.parametrize("bits", BITS)
def test_only_the_adapter_and_the_heads_are_trained(base: Path, odd_tasks: tuple[Task, ...], bits: int | None) -> None:
    model = _model(base, odd_tasks, Adapter(rank=4, bits=bits))
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert set(trained) == set(model.trained_state())
    # Per layer four matrices of 64 x 64, one of 64 x 128, one of 128 x 64. A head has a query, a weight and a bias.
    in_adapter = 2 * 4 * (4 * (64 + 64) + 2 * (64 + 128))
    in_heads = 2 * 64 + (3 + 2) * 64 + (3 + 2)
    assert sum(weight.numel() for weight in trained.values()) == in_adapter + in_heads
    assert {weight.dtype for weight in trained.values()} == {torch.float32}
    model("keys", IDS, MASK).sum().backward()
    others = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert others == {
        *(name for name, _ in model.named_parameters() if name not in trained),
        *(name for name in trained if "news" in name),
    }


def test_a_new_adapter_changes_nothing_and_a_trained_one_does(base: Path, odd_tasks: tuple[Task, ...]) -> None:
    plain = load_encoder(str(base)).eval()
    new = load_encoder(str(base), adapter=Adapter()).eval()
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    before = plain(**inputs).last_hidden_state
    torch.testing.assert_close(new(**inputs).last_hidden_state, before, rtol=0, atol=0)
    trained = _model(base, odd_tasks, Adapter()).eval().encoder
    assert not torch.allclose(trained(**inputs).last_hidden_state, before, atol=0.1)


def test_alpha_over_rank_is_the_scale_of_what_the_adapter_adds(base: Path) -> None:
    encoder = load_encoder(str(base), adapter=Adapter(rank=4, alpha=6.0, dropout=0.0))
    layer = encoder.encoder.layer[0].output.dense
    one, other = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    nn.init.normal_(other)
    states = torch.randn(3, 128)
    expected = layer.base_layer(states) + 1.5 * states @ one.T @ other.T
    torch.testing.assert_close(layer(states), expected)


def test_an_adapter_drops_its_share_of_the_inputs_of_a_while_it_trains_and_none_of_the_layer_under_it(base):
    encoder = load_encoder(str(base), adapter=Adapter(rank=4, alpha=4.0, dropout=0.75)).train()
    layer = encoder.encoder.layer[0].output.dense
    one, other = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    nn.init.ones_(one)
    nn.init.constant_(other, 0.25)  # each output gets the sum of the inputs that are left, times 4 for those dropped
    torch.manual_seed(0)
    states = torch.ones(50, 128)
    left = (layer(states) - layer.base_layer(states)) / 4
    torch.testing.assert_close(left, left.round(), rtol=0, atol=1e-3)
    assert left.mean().item() == pytest.approx(0.25 * 128, rel=0.05)
    assert len(left[:, 0].round().unique()) > 5
    torch.testing.assert_close(encoder.eval() and layer(states) - layer.base_layer(states), torch.full((50, 64), 128.0))


@needs_bitsandbytes
def test_four_bit_weights_are_half_a_byte_each_and_close_to_what_they_were(base: Path) -> None:
    full = _linear(load_encoder(str(base)))
    layers = _linear(load_encoder(str(base), adapter=Adapter(bits=4)))
    assert {layer.weight.dtype for layer in layers.values()} == {torch.uint8}
    layer_bytes = sum(layer.weight.untyped_storage().nbytes() for layer in layers.values())
    assert layer_bytes == sum(layer.weight.numel() for layer in full.values()) / 2
    for name, layer in layers.items():
        from bitsandbytes.functional import dequantize_4bit

        weight = full[name.removesuffix(".base_layer")].weight
        error = (dequantize_4bit(layer.weight.data, layer.weight.quant_state) - weight).abs()
        assert 0 < error.mean() < 0.1 * weight.abs().mean()


@needs_bitsandbytes
def test_eight_bit_weights_are_a_byte_each(base: Path) -> None:
    layers = _linear(load_encoder(str(base), adapter=Adapter(bits=8)))
    assert {layer.weight.dtype for layer in layers.values()} == {torch.int8}
    assert {layer.weight.element_size() for layer in layers.values()} == {1}


@needs_bitsandbytes
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_double_quantisation_type_and_compute_dtype_reach_the_layers(base: Path, double: bool, kind: str) -> None:
    adapter = Adapter(bits=4, double_quant=double, quant_type=kind, compute_dtype="bfloat16")
    for layer in _linear(load_encoder(str(base), adapter=adapter)).values():
        state = layer.weight.quant_state
        assert (state.quant_type, state.nested, layer.compute_dtype) == (kind, double, torch.bfloat16)
        assert state.absmax.dtype == (torch.uint8 if double else torch.float32)


@pytest.mark.parametrize(
    ("precision", "compute_dtype"),
    [("bf16", "bfloat16"), ("fp16", "float16"), ("tf32", "float32"), ("float32", "float32")],
)
def test_four_bit_weights_are_multiplied_in_what_the_trial_computes_in(precision: str, compute_dtype: str) -> None:
    adapter = adapters.adapter_of(TrainingOptions(adapter="lora", bits=4), precision=precision)
    assert adapter is not None
    assert adapter.compute_dtype == compute_dtype


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16", "float16"])
def test_what_is_trained_is_float32_whatever_is_computed_in(base: Path, bits: int | None, compute_dtype: str) -> None:
    encoder = load_encoder(str(base), adapter=Adapter(bits=bits, compute_dtype=compute_dtype))
    assert {weight.dtype for weight in encoder.parameters() if weight.requires_grad} == {torch.float32}


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16", "float16"])
def test_an_evaluation_leaves_the_next_training_step_as_it_was(base, odd_tasks, bits, compute_dtype):
    model = _model(base, odd_tasks, Adapter(bits=bits, dropout=0.0, compute_dtype=compute_dtype))
    model.head("keys").dropout.p = 0.0

    def step() -> list[torch.Tensor]:
        model.train().zero_grad()
        logits = model("keys", IDS, MASK)
        logits.square().sum().backward()
        return [logits.detach(), *(weight.grad for weight in adapter_state(model.encoder).values())]  # type: ignore[list-item]

    first = step()
    with torch.inference_mode():
        model.eval()("keys", IDS, MASK)
    for one, other in zip(first, step(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert all(gradient.abs().max() > 0 for gradient in first[1:])


@pytest.mark.parametrize("bits", BITS)
def test_activation_checkpointing_gives_the_same_gradients(base, odd_tasks, bits):
    gradients = []
    for recompute in (False, True):
        model = _model(base, odd_tasks, Adapter(bits=bits, dropout=0.0)).train()
        model.head("keys").dropout.p = 0.0
        if recompute:
            model.activation_checkpointing_enable()
            assert model.encoder.is_activation_checkpointing
        model("keys", IDS, MASK).square().sum().backward()
        gradients.append([weight.grad for weight in adapter_state(model.encoder).values()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_an_encoder_without_linear_layers_is_refused(tmp_path: Path) -> None:
    BertModel(BertConfig(**{**SMALL, "num_hidden_layers": 0}), add_pooling_layer=False).save_pretrained(tmp_path)
    with pytest.raises(TrialError, match="adapter must be null for an encoder without linear layers"):
        load_encoder(str(tmp_path), adapter=Adapter())


WITHOUT = """
import importlib.machinery as machinery, sys
found = machinery.PathFinder.find_spec
def find_spec(name, *rest):
    return None if name.partition(".")[0] == "bitsandbytes" else found(name, *rest)
machinery.PathFinder.find_spec = staticmethod(find_spec)

from tutti.errors import TrialError
from tutti.modeling.adapters import Adapter, adapter_state
from tutti.modeling.model import load_encoder
print(len(adapter_state(load_encoder(sys.argv[1], adapter=Adapter()))))
try:
    load_encoder(sys.argv[1], adapter=Adapter(bits=4))
except TrialError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_bitsandbytes_there_is_lora_and_bits_name_what_to_install(base: Path) -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT, str(base)], capture_output=True, text=True, check=True)
    count, message = run.stdout.splitlines()
    assert count == "24"
    assert message.startswith("the training key bits must have the package bitsandbytes that quantises")
    assert message.endswith("install it with: pip install 'bitsandbytes>=0.50'.")


@pytest.mark.slow
@needs_bitsandbytes
def test_quantising_prints_nothing(base: Path) -> None:
    code = (
        "import sys, torch\n"
        "from tutti.modeling.adapters import Adapter\n"
        "from tutti.modeling.model import load_encoder\n"
        "encoder = load_encoder(sys.argv[1], adapter=Adapter(bits=8))\n"
        "ids = torch.tensor([[2, 5, 3]]); encoder(input_ids=ids, attention_mask=torch.ones_like(ids))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(base)], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")


def _outputs(model: MultiTaskModel) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [model.eval()(name, IDS, MASK) for name in model.tasks]


@pytest.mark.parametrize("bits", BITS)
def test_a_checkpoint_holds_adapter_and_heads_alone_and_says_what_the_model_said(base, odd_tasks, tmp_path, bits):
    adapter = Adapter(rank=4, bits=bits, compute_dtype="bfloat16")
    model = _model(base, odd_tasks, adapter)
    folder = save_model(tmp_path / "best", model, base)
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in folder.iterdir()} - tokenizer == {
        *("adapter_config.json", "adapter_model.safetensors", "heads.safetensors", "tutti.json")
    }
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert weights < 4 * sum(weight.numel() for weight in model.trained_state().values()) + 10_000
    loaded, metadata = load_checkpoint(folder)
    for one, other in zip(_outputs(loaded), _outputs(model), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert metadata.adapter == loaded.adapter == adapter
    assert metadata.base is not None
    assert set(metadata.base.files) == {"config.json", "model.safetensors"}
    assert {name for name, weight in loaded.named_parameters() if weight.requires_grad} == set(model.trained_state())
    metadata = json.loads((folder / "tutti.json").read_text())
    assert (metadata["adapter"]["kind"], metadata["adapter"]["bits"], metadata["base"]["backbone"]) == (
        "lora",
        bits,
        str(base),
    )
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)


def test_plain_transformers_lays_the_adapter_over_the_backbone(base, odd_tasks, tmp_path):
    deep = Path(shutil.copytree(base, tmp_path / "deep"))  # with 20 or more layers, peft would save the ends of names
    BertModel(BertConfig(**{**SMALL, "num_hidden_layers": 4})).save_pretrained(deep)
    model = _model(deep, odd_tasks, Adapter(rank=4)).eval()
    folder = save_model(tmp_path / "best", model, base)
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    plain = AutoModel.from_pretrained(folder).eval()
    assert plain.pooler is not None  # the adapter does not change it
    expected = model.encoder(**inputs).last_hidden_state
    torch.testing.assert_close(plain(**inputs).last_hidden_state, expected, rtol=0, atol=0)
    assert not any("pooler" in name for name in adapter_state(plain))
    assert AutoTokenizer.from_pretrained(folder)("w1 w2")["input_ids"] == [2, 5, 6, 3]
    with pytest.raises(KeyError, match="logits"):  # the adapter fits no classifier, and the encoder alone is none
        pipeline("text-classification", model=str(folder))("w1 w2")


def test_a_checkpoint_finds_a_backbone_that_was_named_from_another_folder(base, odd_tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(base.parent)
    model = _model(Path(base.name), odd_tasks, Adapter())
    folder = save_model(tmp_path / "best", model, base)
    monkeypatch.chdir(tmp_path)
    loaded, _ = load_checkpoint(folder)
    for one, other in zip(_outputs(loaded), _outputs(model), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_backbone_that_changed_or_went_away_is_named(base: Path, odd_tasks: tuple[Task, ...], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(base, tmp_path / "copy"))
    folder = save_model(tmp_path / "best", _model(copy, odd_tasks, Adapter()), copy)
    torch.manual_seed(9)
    BertModel(BertConfig(**SMALL)).save_pretrained(copy)
    with pytest.raises(StorageError, match=r"copy/model\.safetensors must be what it was.*put back the backbone"):
        load_checkpoint(folder)
    shutil.rmtree(copy)
    with pytest.raises(BackboneError, match="copy"):
        load_checkpoint(folder)


def test_a_checkpoint_names_the_backbone_that_was_loaded_and_not_one_put_in_its_place(base, odd_tasks, tmp_path):
    copy = Path(shutil.copytree(base, tmp_path / "copy"))
    model = _model(copy, odd_tasks, Adapter())
    first = save_model(tmp_path / "best", model, copy)
    later, _ = load_checkpoint(first)
    torch.manual_seed(9)
    BertModel(BertConfig(**SMALL)).save_pretrained(copy)
    for each in (model, later):
        folder = save_model(tmp_path / "best", each, copy)
        with pytest.raises(StorageError, match=r"copy/model\.safetensors must be what it was"):
            load_checkpoint(folder)


@pytest.mark.parametrize("bits", BITS)
def test_a_state_to_go_on_from_holds_no_weight_of_the_backbone(base, odd_tasks, bits):
    model, other = _model(base, odd_tasks, Adapter(bits=bits)), _model(base, odd_tasks, Adapter(bits=bits))
    with torch.no_grad():
        for weight in other.parameters():
            if weight.requires_grad:
                weight.add_(1)
    state = model.trained_state()
    assert all("lora_" in name or name.startswith("heads.") for name in state)
    other.load_trained_state(state)
    for one, same in zip(_outputs(other), _outputs(model), strict=True):
        torch.testing.assert_close(one, same, rtol=0, atol=0)
    with pytest.raises(KeyError, match="the adapter's weights differ in 1 names"):
        other.load_trained_state({name: value for name, value in state.items() if name != next(iter(state))})


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_a_merged_model_gives_what_the_adapted_one_gives(
    base: Path, odd_tasks: tuple[Task, ...], tmp_path: Path, bits: int | None, dora: bool
) -> None:
    if bits == 8 and dora:
        pytest.skip("not with 8 bits")
    model = _model(base, odd_tasks, Adapter(rank=4, bits=bits, dora=dora))
    save_model(tmp_path / "own", model, base)
    merged, _ = merged_model(tmp_path / "own", odd_tasks[0])
    save_model(tmp_path / "merged", merged, base, tasks=odd_tasks[:1], task_scores={odd_tasks[0].name: 0.5})
    loaded, metadata = load_checkpoint(tmp_path / "merged")
    assert metadata.base is None
    with torch.no_grad():
        expected, found = (each.eval()(odd_tasks[0].name, IDS, MASK) for each in (model, loaded))
    torch.testing.assert_close(found, expected, atol=2e-3 if bits else 1e-5, rtol=0)
