from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    XLMConfig,
    XLMModel,
    XLMRobertaXLConfig,
    XLMRobertaXLModel,
)

from tutti.modeling.layers import depths, encoder_layers, own_layers, reinitialise
from tutti.modeling.mixout import MixoutLinear, add_mixout
from tutti.modeling.model import load_encoder


def test_depth_counts_the_layers_above(backbone: Path) -> None:
    encoder = load_encoder(str(backbone))
    by_name, layers = depths(encoder), encoder.config.num_hidden_layers
    assert set(by_name) == {name for name, _ in encoder.named_parameters()}
    assert {depth for name, depth in by_name.items() if name.startswith("embeddings.")} == {layers}  # the norm's too
    for index in range(layers):
        assert by_name[f"encoder.layer.{index}.output.dense.weight"] == layers - 1 - index


SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8}


DEBERTA = {"relative_attention": True, "norm_rel_ebd": "layer_norm"}


@pytest.mark.parametrize(
    ("encoder", "below"),
    [
        (DebertaV2Model(DebertaV2Config(**SMALL, **DEBERTA)), ["rel_embeddings.weight", "LayerNorm.weight"]),
        (MPNetModel(MPNetConfig(**SMALL)), ["relative_attention_bias.weight"]),
    ],
    ids=["DeBERTa", "MPNet"],
)
def test_what_every_layer_reads_lies_below_all_layers(encoder: PreTrainedModel, below: Sequence[str]) -> None:
    by_name = depths(encoder)
    assert [by_name[f"encoder.{name}"] for name in below] == [3] * len(below)


def test_a_convolution_beside_the_lowest_layer_lies_as_low() -> None:
    by_name = depths(DebertaV2Model(DebertaV2Config(**SMALL, conv_kernel_size=3)))
    beside = {depth for name, depth in by_name.items() if name.startswith("encoder.conv.")}
    assert beside == {by_name["encoder.layer.0.output.dense.weight"]} == {2}


def test_a_norm_after_the_layers_has_none_above_it() -> None:
    encoder = XLMRobertaXLModel(XLMRobertaXLConfig(**SMALL))
    assert depths(encoder)["encoder.LayerNorm.weight"] == 0


def test_where_no_one_list_holds_the_layers_none_is_taken_for_it() -> None:
    encoder = XLMModel(XLMConfig(vocab_size=20, emb_dim=8, n_layers=3, n_heads=2))
    with pytest.raises(ValueError, match="no one list of layers, but attentions, layer_norm1, ffns, layer_norm2"):
        reinitialise(encoder, 1)  # would reinitialise only the attention of the top layer
    assert own_layers(encoder) == 0


def test_layers_that_share_their_weights_are_one() -> None:
    config = AlbertConfig(vocab_size=20, embedding_size=8, hidden_size=8, num_hidden_layers=4, num_attention_heads=2)
    assert own_layers(AlbertModel(config)) == 1
    assert own_layers(BertModel(BertConfig(**SMALL))) == 3


def test_the_top_layers_start_anew_and_the_rest_stays(backbone: Path) -> None:
    encoder = load_encoder(str(backbone))
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(1.0)  # far from any initial distribution
    before = {name: weight.detach().clone() for name, weight in encoder.named_parameters()}
    torch.manual_seed(0)
    reinitialise(encoder, 1)
    top = f"encoder.layer.{encoder.config.num_hidden_layers - 1}."
    for name, weight in encoder.named_parameters():
        assert torch.equal(weight, before[name]) != name.startswith(top), name
    dense = encoder.get_parameter(f"{top}output.dense.weight")
    assert dense.std().item() == pytest.approx(encoder.config.initializer_range, rel=0.2)
    assert encoder.get_parameter(f"{top}output.LayerNorm.weight").unique().tolist() == [1.0]


def test_layers_start_anew_on_the_scale_that_their_class_draws_on(tmp_path: Path) -> None:
    small = {**SMALL, "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 8, "intermediate_size": 96}
    special = dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id"), 0)
    torch.manual_seed(0)
    ModernBertModel(ModernBertConfig(**small, **special)).save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path))  # whose weights transformers has marked as loaded
    weights = [
        encoder.get_parameter(f"layers.7.{name}.weight") for name in ("attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo")
    ]
    drawn = [weight.std().item() for weight in weights]
    assert drawn[3] == pytest.approx(drawn[2] / 4, rel=0.1)  # 1 / sqrt(2 * 8 layers)
    reinitialise(encoder, 1)
    assert [weight.std().item() for weight in weights] == pytest.approx(drawn, rel=0.1)


def test_more_layers_than_there_are_cannot_start_anew(backbone: Path) -> None:
    with pytest.raises(ValueError, match="at most 2"):
        reinitialise(load_encoder(str(backbone)), 3)


def test_mixout_puts_a_share_of_the_weights_back_to_their_value_before(backbone: Path) -> None:
    encoder = load_encoder(str(backbone))
    pretrained = copy.deepcopy(encoder)
    names = set(encoder.state_dict())
    add_mixout(encoder, share=0.7)
    assert set(encoder.state_dict()) == names
    layer = encoder.get_submodule("encoder.layer.0.output.dense")
    original = pretrained.get_submodule("encoder.layer.0.output.dense")
    rows = torch.eye(layer.in_features)
    torch.manual_seed(0)
    torch.testing.assert_close(layer.train()(rows), original(rows))  # without a difference, mixout has no effect
    with torch.no_grad():
        layer.weight.add_(1.0)
    seen = torch.stack([layer(rows) - original(rows) for _ in range(400)])  # the differences of single weights
    assert (seen.abs() < 1e-5).float().mean().item() == pytest.approx(0.7, abs=0.01)
    assert seen.mean().item() == pytest.approx(1.0, abs=0.02)
    torch.testing.assert_close(layer.eval()(rows) - original(rows), torch.ones_like(rows[:, : layer.out_features]))


def test_mixout_draws_each_weight_by_itself_and_leaves_biases_as_they_are_trained(backbone: Path) -> None:
    encoder = load_encoder(str(backbone))
    add_mixout(encoder, share=0.5)
    layer = encoder.get_submodule("encoder.layer.0.output.dense")
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.before.zero_()
        layer.bias.fill_(10.0)
    torch.manual_seed(0)
    kept = layer.train()(torch.eye(layer.in_features)) - 10.0  # 0 or 1 / (1 - share) for each weight
    assert kept.unique().tolist() == [0.0, 2.0]
    assert kept.unique(dim=0).shape == kept.unique(dim=1).shape == kept.shape  # no two inputs or outputs alike


def test_mixout_leaves_layers_out_that_start_anew(backbone: Path) -> None:
    encoder = load_encoder(str(backbone))
    _, layers = encoder_layers(encoder)
    mixed = {name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)}
    new = {name for name in mixed if name.startswith(f"encoder.layer.{len(layers) - 1}.")}
    add_mixout(encoder, share=0.7, new_layers=1)
    assert new
    assert {name for name, module in encoder.named_modules() if isinstance(module, MixoutLinear)} == mixed - new
